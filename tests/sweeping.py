"""Sweeps as a user starts them, in processes of their own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sft_exp import descendants

TINY = [
    "model=tiny", "hw=cpu", "dataset.limit=40", "train.global_batch=4", "train.micro_batch=4", "train.logging_steps=1",
    "dataset.max_length=64",
]  # fmt: skip


def start(cwd: Path, *words: str) -> subprocess.Popen[str]:
    """Start a command; its output is kept in a file."""
    with (cwd / "output.txt").open("a") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "sft_exp", *words], cwd=cwd, stdout=output, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
        )  # fmt: skip


def output(cwd: Path) -> str:
    return (cwd / "output.txt").read_text()


def record(cwd: Path) -> dict[str, Any]:
    """The only sweep's record."""
    [file] = (cwd / "outputs").glob("*/*-sweep/sweep.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def states(cwd: Path) -> list[str]:
    return [job["state"] for job in record(cwd)["jobs"]]


def left_running(cwd: Path) -> list[str]:
    """Command lines of processes that work in or for a folder."""
    found = []
    for process in descendants.living():
        try:
            text = Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(cwd) in text:
            found.append(text)
    return found


def wait_until(condition: Any, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)
