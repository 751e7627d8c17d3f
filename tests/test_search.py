"""A search with Optuna: trials counted once however often it is killed, hopeless ones given up."""

import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import sweeping
from sweeping import TINY

pytestmark = pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="optuna is not installed")
TRIALS, STEPS = 30, 16


def over(cwd: Path) -> int:
    return sum(state in ("finished", "pruned") for state in sweeping.states(cwd))


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_a_search_killed_twice_counts_each_trial_once(tmp_path: Path) -> None:
    import optuna

    command = [
        *TINY, f"train.max_steps={STEPS}", "train.eval_steps=2", "train.save_steps=2", "dataset.eval_fraction=0.2",
        "sweep.per_device=2", "tracking=none", "sweep.sampler=tpe", "sweep.pruner=median", f"sweep.trials={TRIALS}",
        "+sweep.space={train.learning_rate:{low:1e-6,high:3e-2,log:true}}",
    ]  # fmt: skip
    for done in (6, 15):
        driver = sweeping.start(tmp_path, *command)
        sweeping.wait_until(lambda: list(tmp_path.glob("outputs/*/*-sweep/sweep.json")))
        sweeping.wait_until(
            lambda n=done: sum(s in ("finished", "pruned") for s in sweeping.states(tmp_path)) >= n, 1500
        )
        driver.kill()
        driver.wait()
    assert sweeping.start(tmp_path, *command).wait() == 0

    jobs = sweeping.record(tmp_path)["jobs"]
    study = optuna.load_study(study_name=None, storage=f"sqlite:///{Path(jobs[0]['folder']).parent}/study.db")
    assert [trial.state.name for trial in study.trials] == [
        {"finished": "COMPLETE", "pruned": "PRUNED"}[job["state"]] for job in jobs
    ]
    assert len(jobs) == TRIALS
    assert len({tuple(trial.params.values()) for trial in study.trials}) == TRIALS
    steps = 0
    for job in jobs:
        rows = [json.loads(line) for line in (Path(job["folder"]) / "metrics.jsonl").read_text().splitlines()]
        trained = [row["step"] for row in rows if "train/loss" in row]
        assert trained == list(range(1, len(trained) + 1))
        assert json.loads((Path(job["folder"]) / "status.json").read_text())["state"] == job["state"]
        steps += len(trained)
    print(f"{steps} of {TRIALS * STEPS} steps")
    assert steps <= 0.7 * TRIALS * STEPS

    printed = sweeping.output(tmp_path).rstrip().splitlines()[-1]
    words = shlex.split(printed)
    again = subprocess.run([sys.executable, *words[1:], "outputs=again"], cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    [metrics] = tmp_path.glob("again/*/*/metrics.jsonl")
    values = [json.loads(line).get("eval/loss") for line in metrics.read_text().splitlines()]
    assert [value for value in values if value is not None][-1] == study.best_value
