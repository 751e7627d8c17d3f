"""A sweep whose jobs break in every way, and whose driver is killed: real processes, nothing mocked."""

import json
import os
import time
from pathlib import Path

import pytest

import sweeping
from sweeping import TINY

FAULTY = Path(__file__).parent / "faulty"
RATES = [0.001, 0.002, 0.003, 0.004, 0.005, -1, 0.011, 0.012, 0.013, 0.014, 0.015, 0.016]
"""Five faults (`faulty/sitecustomize.py`), one refused job, six good ones."""
STEPS = 60
WORDS = {0: "ZeroDivisionError", 1: "SystemExit", 2: "SIGSEGV", 3: "SIGKILL", 5: "learning_rate=-1"}


def step(folder: str) -> int:
    file = Path(folder) / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0


def running(cwd: Path) -> list[str]:
    return [job["folder"] for job in sweeping.record(cwd)["jobs"] if job["state"] == "running"]


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_faults_leave_other_jobs_alone_and_a_killed_driver_goes_on(tmp_path: Path) -> None:
    python_path = f"{FAULTY}:{os.environ.get('PYTHONPATH', '')}"
    command = [
        "-m", *TINY, f"train.max_steps={STEPS}", "train.save_steps=5", "dataset.eval_fraction=0", "sweep.per_device=2",
        "tracking=none", f"+hw.env.PYTHONPATH='{python_path}'", f"train.learning_rate={','.join(map(str, RATES))}",
    ]  # fmt: skip
    driver = sweeping.start(tmp_path, *command)
    sweeping.wait_until(lambda: list(tmp_path.glob("outputs/*/*-sweep/sweep.json")))
    sweeping.wait_until(lambda: sweeping.states(tmp_path).count("finished") >= 2, 900)
    sweeping.wait_until(lambda: any(7 <= step(folder) < STEPS - 20 for folder in running(tmp_path)))
    driver.kill()
    driver.wait()
    killed = sweeping.record(tmp_path)
    finished = {job["folder"]: (Path(job["folder"]) / "result.json").stat().st_mtime_ns
                for job in killed["jobs"] if job["state"] == "finished"}  # fmt: skip
    sweeping.wait_until(lambda: not sweeping.left_running(tmp_path / "outputs"), 60)

    assert sweeping.start(tmp_path, *command).wait() == 1
    jobs, text = sweeping.record(tmp_path)["jobs"], sweeping.output(tmp_path)
    assert [job["state"] for job in jobs] == ["failed"] * 5 + ["refused"] + ["finished"] * 6
    for number, word in WORDS.items():
        assert word in jobs[number]["reason"]
    assert "emory" in jobs[4]["reason"] or "alloc" in jobs[4]["reason"]
    assert f"goes on in {Path(jobs[0]['folder']).parent}" in text
    assert "goes on from" in text.partition("goes on in")[2]
    for folder, written in finished.items():
        assert (Path(folder) / "result.json").stat().st_mtime_ns == written
    for job in jobs[6:]:
        rows = [json.loads(line) for line in (Path(job["folder"]) / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    time.sleep(1)
    assert sweeping.left_running(tmp_path / "outputs") == []
