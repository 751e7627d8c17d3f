"""The scripts under benchmarks/: what they would run is planned here, and the tiny model goes through them."""

import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import sft_exp
from composing import assembled, machine
from sft_exp import memory

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
SOURCE = Path(sft_exp.__file__).resolve().parents[1]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import one of the scripts."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.mark.parametrize("cap", [24, 32])
def test_capped_runs_lie_near_the_cap(here: Path, load: Any, cap: int) -> None:
    """Enough of each verdict, none far from the limit, so that a wrong plan would show."""
    verdicts: Counter[str] = Counter()
    for case in load("memory_cases").CAPPED[cap]:
        words = [word for word in case.overrides() if not word.startswith("tracking=")]
        plan = memory.plan(assembled(*words, f"hw.memory_gib={cap}", "model.attention=sdpa", on=machine("h200")))
        assert plan is not None
        assert 0.75 < plan.total_gib / cap < 1.25, case.name
        verdicts[plan.verdict.value] += 1
    assert set(verdicts) == {"fits", "tight", "does not fit"}
    assert min(verdicts.values()) >= 4


def test_names_are_unique(load: Any) -> None:
    cases = load("memory_cases")
    for chosen in (cases.CASES, *cases.CAPPED.values()):
        assert len({case.name for case in chosen}) == len(chosen)


def test_summary_counts_wrong_verdicts(load: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"name": "a", "cap_gib": 32, "plan": {"verdict": "fits"}, "out_of_memory": True},
        {"name": "b", "cap_gib": 32, "plan": {"verdict": "fits"}, "result": {"memory_error": 0.01}},
        {"name": "c", "cap_gib": 32, "plan": {"verdict": "does not fit"}, "result": {"memory_error": -0.03}},
        {"name": "d", "cap_gib": 32, "plan": {"verdict": "tight"}, "out_of_memory": False},
    ]
    file = tmp_path / "out.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    load("memory").summary(file)
    text = capsys.readouterr().out
    assert "2 runs: median error 2.0%, worst 3.0%" in text
    assert "planned as 'fits': 2: 1 out of memory, 1 ran\n  wrong: a" in text
    assert "planned as 'does not fit': 1: 1 ran\n  wrong: c" in text
    assert "planned as 'tight': 1: 1 failed otherwise" in text


def test_a_run_that_failed_is_a_row_of_the_table(load: Any) -> None:
    result = {"tokens_per_second": 1000.0, "peak_memory_gib": 2.0, "loss_last": 1.5, "grad_norm": 0.25}
    rows = [
        {"zero": "0", "result": result, "step_seconds": 0.5},
        {"zero": "2", "result": {**result, "tokens_per_second": 500.0, "planned_memory_gib": 2.1}, "step_seconds": 1},
        {"zero": "3", "exit": 1},
    ]
    lines = load("zero_speed").table(rows).splitlines()
    assert lines[2] == "| `zero=0` | 1,000 | 1.00 | 0.50 | 2.00 | - | 1.5000 | 0.250 |"
    assert lines[3] == "| `zero=2` | 500 | 0.50 | 1.00 | 2.00 | 2.10 | 1.5000 | 0.250 |"
    assert lines[4] == "| `zero=3` | failed (exit 1) | - | - | - | - | - | - |"


@pytest.mark.slow
def test_zero_speed_with_the_tiny_model(tmp_path: Path) -> None:
    """Two settings through the command line; a second call has nothing left to do."""
    out = tmp_path / "speed.json"
    argv = [sys.executable, str(FOLDER / "zero_speed.py"), "--out", str(out), "--model", "tiny", "--hw", "cpu",
            "--length", "128", "--steps", "3", "--zero", "0", "2"]  # fmt: skip
    for _ in range(2):
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=400, check=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )  # fmt: skip
    assert "| `zero=2` |" in done.stdout
    rows = json.loads(out.read_text())
    assert [(row["zero"], row["exit"], row["result"]["steps"]) for row in rows] == [("0", 0, 3), ("2", 0, 3)]
    assert out.with_suffix(".md").read_text() in done.stdout
