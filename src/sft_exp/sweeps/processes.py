"""Jobs as processes: started each in a session of its own, asked to end, and nothing of them left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from sft_exp import descendants, launch, rundir
from sft_exp.request import Request
from sft_exp.sweeps.job import Job

END_GRACE_S = 2 * launch.GRACE_S
"""Seconds a job has to end its own ranks before it is killed."""
ORPHAN_GRACE_S = 5.0
"""Seconds that processes of an ended job have to end by themselves before they are killed."""


@dataclass
class Running:
    """A job that was started."""

    job: Job
    child: subprocess.Popen[bytes]
    devices: list[int]
    port: int
    started: float = field(default_factory=time.monotonic)


class JobProcesses:
    """The jobs that run now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[int, Running] = {}
        self._orphans_since: float | None = None
        # What a killed job leaves behind becomes a child of this process, and is ended before its devices are given on.
        descendants.adopt_orphans()

    def log(self, job: Job) -> Path:
        """What the job prints."""
        return self.folder / f"{job.number}.log"

    def port(self) -> int:
        """A port that no running job was given either."""
        taken = {running.port for running in self.running.values()}
        while (port := launch.free_port()) in taken:
            pass
        return port

    def start(self, job: Job, request: Request, devices: list[int]) -> None:
        """Start a job; `request.port` is its own."""
        file = self.folder / f"{job.number}.json"
        rundir.write_json(file, request)
        with self.log(job).open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "sft_exp.job", str(file)], stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=descendants.die_with_parent,
            )  # fmt: skip
        job.state = "running"
        self.running[job.number] = Running(job, child, devices, request.port or 0)

    def ended(self) -> list[tuple[Running, int]]:
        """Jobs that have ended since the last call, with exit codes, once no process of theirs is left."""
        codes = {number: running.child.poll() for number, running in self.running.items()}
        over = [(self.running[number], code) for number, code in codes.items() if code is not None]
        if not over or self._orphans_left():
            return []
        for running, _ in over:
            running.job.seconds += time.monotonic() - running.started
            del self.running[running.job.number]
        return over

    def _orphans_left(self) -> bool:
        """End what ended jobs have left. Whose it was cannot be told any more, so all of them wait for it."""
        own = {running.child.pid for running in self.running.values()}
        orphans = [each.pid for each in descendants.children(os.getpid()) if each.pid not in own]
        self._reap(own)
        if not orphans:
            self._orphans_since = None
            return False
        now = time.monotonic()
        if self._orphans_since is None:
            self._orphans_since = now
            descendants.terminate(orphans)
        elif now - self._orphans_since > ORPHAN_GRACE_S:
            descendants.terminate(orphans, signal.SIGKILL)
        return True

    def _reap(self, own: set[int]) -> None:
        """Wait for adopted processes that have ended: those of jobs are waited for by their handles."""
        for each in descendants.zombies(os.getpid()):
            if each.pid not in own:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(each.pid, os.WNOHANG)

    def prune(self, number: int) -> None:
        """Ask a job to end as pruned."""
        self.running[number].child.send_signal(launch.PRUNE)

    def end(self) -> None:
        """Ask all jobs to end, wait, and kill what is left."""
        for running in self.running.values():
            running.child.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + END_GRACE_S
        while time.monotonic() < deadline and any(each.child.poll() is None for each in self.running.values()):
            time.sleep(0.1)
        for running in self.running.values():
            running.child.kill()
            running.child.wait()
        left = [each.pid for each in descendants.below(os.getpid()) if each.session != os.getsid(0)]
        descendants.terminate(left, signal.SIGKILL)
