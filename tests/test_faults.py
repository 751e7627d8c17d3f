"""What a user is told when a process of a run has failed."""

import json
from pathlib import Path

import pytest

from sft_exp import faults
from sft_exp.errors import ConfigError, RunFailed
from sft_exp.rundir import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path)
    for folder in (run.logs, run.faults):
        folder.mkdir()
    return run


def fail(run: RunDir, process: str, error: Exception, time: float | None = None) -> None:
    try:
        raise error
    except Exception as raised:
        faults.write(run, process, raised)
    if time is not None:
        file = run.faults / f"{process}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "time": time}))


def elastic(run: RunDir, rank: int, code: int) -> None:
    """The line that torchrun leaves about the first rank that failed."""
    (run.logs / "launcher.log").write_text(
        f"E failed (exitcode: {code}) local_rank: {rank} (pid: 4711) of binary: /usr/bin/python\n"
    )


def test_mistakes_come_as_they_were_written(run: RunDir) -> None:
    fail(run, "prepare", ConfigError("first.", "second."))
    error = faults.to_error(run, "prepare", 1)
    assert isinstance(error, ConfigError)
    assert error.problems == ("first.", "second.")
    assert error.exit_code == 2


def test_a_fault_has_its_traceback_and_the_logs(run: RunDir) -> None:
    fail(run, "rank0", ValueError("bad\nthing"))
    error = faults.to_error(run, "rank0", 1)
    assert isinstance(error, RunFailed)
    assert str(error).startswith("rank0 failed with ValueError: bad\n")
    assert "raise error" in str(error)
    assert str(run.logs) in str(error)


def test_the_first_fault_counts(run: RunDir) -> None:
    fail(run, "rank1", RuntimeError("lost the other rank"), time=2.0)
    fail(run, "rank0", ValueError("the reason"), time=1.0)
    assert (faults.first(run) or {})["process"] == "rank0"
    elastic(run, 1, 1)
    assert "rank0 failed with ValueError: the reason" in str(faults.to_error(run, "launcher", 1))


def test_a_killed_rank_counts_more_than_those_that_miss_it(run: RunDir) -> None:
    fail(run, "rank0", RuntimeError("connection reset"), time=1.0)
    (run.logs / "rank1.log").write_text("step 3\n")
    elastic(run, 1, -9)
    text = str(faults.to_error(run, "launcher", 1))
    assert "rank1 was killed by SIGKILL (out of host memory?)" in text
    assert "step 3" in text


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (-11, "rank0 was killed by SIGSEGV;"),
        (-9, "rank0 was killed by SIGKILL (out of host memory?);"),
        (3, "rank0 ended with exit code 3;"),
        (None, "rank0 had to be stopped;"),
    ],
)
def test_without_a_fault_the_log_speaks(run: RunDir, code: int | None, expected: str) -> None:
    (run.logs / "rank0.log").write_text("".join(f"line {number}\n" for number in range(40)))
    text = str(faults.to_error(run, "rank0", code))
    assert text.startswith(expected)
    assert "line 39" in text
    assert "line 24\n" not in text


def test_nothing_at_all_was_left(run: RunDir) -> None:
    assert faults.first(run) is None
    text = str(faults.to_error(run, "prepare", 1))
    assert text == f"prepare ended with exit code 1; its log is empty\nlogs: {run.logs}"


@pytest.mark.parametrize("written", ["", "\n", " \n\n"])
@pytest.mark.parametrize("process", ["rank0", "launcher"])
def test_a_killed_rank_with_an_empty_log(run: RunDir, written: str, process: str) -> None:
    (run.logs / "rank0.log").write_text(written)
    if process == "launcher":
        elastic(run, 0, -9)
    text = str(faults.to_error(run, process, -9 if process == "rank0" else 1))
    assert text == f"rank0 was killed by SIGKILL (out of host memory?); its log is empty\nlogs: {run.logs}"


def test_a_log_that_is_no_text(run: RunDir) -> None:
    (run.logs / "rank0.log").write_bytes(b"\xff\xfe step\n")
    assert "step" in faults.tail(run, "rank0")
