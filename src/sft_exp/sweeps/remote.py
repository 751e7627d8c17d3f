"""A job of a sweep where one of Hydra's launchers has put it, perhaps on another machine."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from hydra.core.hydra_config import HydraConfig

from sft_exp import descendants, request, rundir
from sft_exp.sweeps import ready
from sft_exp.sweeps.job import Job


def record(folder: Path, number: int) -> Path:
    """Where and when a job was started, and how it has ended."""
    return folder / f"{number}.place.json"


def work(folder: str, cwd: str, numbers: list[int], _: object) -> None:
    """Run the job in a process of its own; one that was requeued goes on from its checkpoint."""
    number = numbers[HydraConfig.get().job.num]
    file = Path(folder) / f"{number}.json"
    asked = request.read(file)
    job = Job(number=number, overrides="", folder=str(asked.folder), request=asked)
    ready.await_end(job, file.with_suffix(".lock"))
    ready.recall(job)
    place = {"host": socket.gethostname(), "started": time.time()}
    code = 0
    if job.state != "finished":  # by an earlier attempt that had been taken for lost
        rundir.write_json(record(Path(folder), number), place)
        rundir.write_json(file, ready.to_start(job, [], None, asked.parent_run_id))
        code = _run(file, cwd)
    rundir.write_json(record(Path(folder), number), {**place, "ended": time.time(), "code": code})


def _run(file: Path, cwd: str) -> int:
    with file.with_suffix(".log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "sft_exp.job", str(file)], cwd=cwd, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_prepare,
        )  # fmt: skip
        return child.wait()


def _prepare() -> None:
    """SLURM sends submitit's signal to every process of a job, and this one has no handler for it."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    descendants.die_with_parent()
