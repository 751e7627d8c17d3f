"""`data rows`: which rows it shows, in which order, and one sentence for each mistake."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from composing import NO_CARDS, compose
from preparing import go, pairs, write
from sft_exp import cli, data_rows, rowlog, rundir
from sft_exp.errors import ConfigError
from sft_exp.resolve import resolve
from sft_exp.rundir import RunDir

RECORDS = {
    "step": [1, 1, 2, 2, 3, 3],
    "row": [0, 1, 2, 3, 0, 4],
    "tokens": [10, 30, 5, 5, 10, 0],
    "loss": [2.0, 4.0, math.nan, 9.0, 1.0, math.nan],
}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run folder with prepared rows and records, as training leaves them."""
    asked = compose("model=tiny", "hw=cpu", f"outputs={tmp_path}/outputs")
    asked.experiment = resolve(asked.experiment, NO_CARDS)
    made = rundir.create(asked)
    data = write(tmp_path / "rows.jsonl", pairs(6))
    rundir.write_json(made.data, go(data, tmp_path / "cache", eval_fraction=0.0))
    file = rowlog.begin(made.rows, rank=0, ranks=1, step=0)
    rowlog.append(file, rowlog.records(**RECORDS))
    return made


def shown(capsys: pytest.CaptureFixture[str], *argv: Any) -> list[str]:
    data_rows.show([str(word) for word in argv])
    return capsys.readouterr().out.splitlines()


def heads(lines: list[str]) -> list[str]:
    return [line for line in lines if "tokens trained" in line]


def test_a_step_shows_all_its_rows_highest_loss_first(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, run.path, "--step", 1)
    assert lines[0] == "step 1, 2 rows, loss 3.5000 over 40 tokens"
    assert [head.split("  ")[0:2] for head in heads(lines)] == [
        ["1. rows.jsonl:2", "loss 4.0000"],
        ["2. rows.jsonl:1", "loss 2.0000"],
    ]
    assert "\n".join(lines).count("⟦") == 2
    assert "⟦It is 2.<|im_end|>⟧" in lines
    assert "What is 1 + 1?<|im_end|>" in lines


def test_top_of_a_step(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, run.path, "--step", 1, "--top", 1)
    assert lines[0].endswith(", the 1 with the highest loss")
    assert [head.split("  ")[0] for head in heads(lines)] == ["1. rows.jsonl:2"]


def test_of_a_whole_run_each_row_once_where_it_stood_out_most(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no number comes first, a row without trained tokens last."""
    lines = shown(capsys, run.path)
    assert lines[0] == "steps 1 to 3, 6 rows trained: the 5 furthest above the median loss at their time"
    assert [(head.split("  ")[0][3:], head.split("  ")[1], head.split("  ")[3]) for head in heads(lines)] == [
        ("rows.jsonl:3", "loss nan", "step 2"),
        ("rows.jsonl:4", "loss 9.0000", "step 2"),
        ("rows.jsonl:2", "loss 4.0000", "step 1"),
        ("rows.jsonl:1", "loss 2.0000", "step 1"),
        ("rows.jsonl:5", "loss nan", "step 3"),
    ]
    assert len(heads(shown(capsys, run.path, "--top", 2))) == 2


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["{run}", "--step", "4"], r"has no rows of step 4: it recorded steps 1 to 3\."),
        (["{run}", "--step", "soon"], r"invalid int value: 'soon'; see .*--help\."),
        (["{run}", "--top", "0"], r"--top=0 shows nothing: give 1 or more\."),
        (["{run}", "--stpe=1"], r"unrecognized arguments: --stpe=1"),
        ([], r"the following arguments are required: RUN"),
        (["nowhere"], r"nowhere is no run folder \(it has no request.json\)"),
    ],
)
def test_mistakes(run: RunDir, argv: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        data_rows.show([word.format(run=run.path) for word in argv])
    assert "\n" not in str(caught.value)


def test_a_run_without_records(run: RunDir) -> None:
    rowlog.file_of(run.rows, 0).unlink()
    with pytest.raises(ConfigError, match="has no record of its rows"):
        data_rows.show([str(run.path)])


def test_prepared_rows_are_gone(run: RunDir) -> None:
    (Path(rundir.read_json(run.data)["folder"]) / "train" / "data.arrow").unlink()
    with pytest.raises(ConfigError, match=r"the prepared rows of .* are gone from .*: prepare the same data again"):
        data_rows.show([str(run.path)])
    run.data.unlink()
    with pytest.raises(ConfigError, match="are gone"):
        data_rows.show([str(run.path)])


def test_records_beyond_the_prepared_rows(run: RunDir) -> None:
    rowlog.append(rowlog.file_of(run.rows, 0), rowlog.records(step=[4], row=[99], tokens=[1], loss=[1.0]))
    with pytest.raises(ConfigError, match=r"trained row 99, and .* has 6 only"):
        data_rows.show([str(run.path), "--step", "4"])


def test_as_typed(run: RunDir, here: Path) -> None:
    command = [sys.executable, "-m", "sft_exp", "data", "rows"]
    done = subprocess.run([*command, str(run.path), "--step", "2"], cwd=here, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("step 2, 2 rows, loss nan over 10 tokens\n\n1. rows.jsonl:3  loss nan")
    wrong = subprocess.run([*command, "--step", "2"], cwd=here, capture_output=True, text=True)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == (
        "sft_exp: data rows: the following arguments are required: RUN; see python -m sft_exp data rows --help.\n"
    )
    assert json.loads(run.request.read_text())
    assert list(here.iterdir()) == []


def test_help_needs_no_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["sft_exp", "data", "rows", "--help"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert "--step K" in capsys.readouterr().out
