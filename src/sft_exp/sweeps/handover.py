"""A sweep whose jobs one of Hydra's launchers runs: hand them over, watch their files, take note of what ends."""

import fcntl
import threading
import time
from pathlib import Path
from typing import Any

from sft_exp import launch, rundir
from sft_exp.errors import RunStopped
from sft_exp.sweeps import ending, job, remote
from sft_exp.sweeps.job import Job
from sft_exp.sweeps.launcher import Launcher
from sft_exp.sweeps.parent import Parent
from sft_exp.sweeps.screen import Screen, question, shared_words, title
from sft_exp.sweeps.view import View

PAUSE_S = 0.5
SETTLE_S = 5.0
"""Seconds the launcher has to return once all jobs have ended: submitit asks SLURM every ten minutes."""


class Handover:
    """The jobs of one sweep in the hands of a launcher."""

    def __init__(
        self, launcher: Launcher, all_jobs: list[Job], folder: Path, head: dict[str, Any], parent: Parent
    ) -> None:
        self.launcher, self.jobs, self.folder, self.head, self.parent = launcher, all_jobs, folder, head, parent
        self.left = [each for each in all_jobs if not each.over]
        self.views = {each.number: View(each) for each in self.left}
        self.screen = Screen()
        self.error = "the launcher has returned"

    def run(self) -> None:
        """Until all jobs have said how they ended, or the launcher says so. Signals leave the jobs alone."""
        for each in self.left:
            self._write(each)
        numbers = ", ".join(str(each.number) for each in self.left)
        self.screen.tell(f"handed over to hydra/launcher={self.launcher.name}: job {numbers}")
        thread = threading.Thread(target=self._launch, daemon=True)
        try:
            with launch.stop_on_signal():
                thread.start()
                while self.left and (thread.is_alive() or any(self._runs(each) for each in self.left)):
                    self._look()
                    time.sleep(PAUSE_S)
                thread.join(SETTLE_S)
                self._look()
        except (RunStopped, KeyboardInterrupt):
            self.screen.tell(
                "the scheduler keeps the jobs that it has: end them with its own command (scancel for SLURM), or go on "
                "with the same command, which waits for those that run"
            )
            raise
        for each in list(self.left):
            self._lost(each)

    def save(self) -> None:
        """Write `sweep.json`."""
        job.write(self.folder, self.head, self.jobs)

    def _write(self, each: Job) -> None:
        """What the job is asked to do; where it starts it becomes known whether it goes on from a checkpoint."""
        assert each.request is not None
        self.parent.forget(each)
        each.request.folder, each.request.parent_run_id = each.folder, self.parent.run_id
        each.request.title = title(each, self.jobs)
        remote.record(self.folder, each.number).unlink(missing_ok=True)
        rundir.write_json(self.folder / f"{each.number}.json", each.request)

    def _launch(self) -> None:
        try:
            self.launcher.launch(self.folder, self.left.copy())
        except Exception as error:  # whatever a scheduler has to say; each job without an end is told of it
            self.error = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"

    def _look(self) -> None:
        """Take note of jobs that have started or ended, and show the others."""
        for each in list(self.left):
            file = remote.record(self.folder, each.number)
            place = rundir.read_json(file) if file.exists() else {}
            if place and each.state != "running":
                each.state = "running"
                self.screen.tell(f"job {each.number} started on {place['host']}: {self._question(each)}")
                self.save()
            self.views[each.number].update()
            if "code" in place:
                each.seconds += place["ended"] - place["started"]
                ending.note(each, place["code"], self.folder / f"{each.number}.log")
                self._over(each)
        running = {each.number: self.views[each.number] for each in self.left if each.state == "running"}
        self.screen.update(self.jobs, running)

    def _runs(self, each: Job) -> bool:
        """Whether the job's own process lives: it holds a lock."""
        file = self.folder / f"{each.number}.lock"
        if not file.exists():
            return False
        with file.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def _lost(self, each: Job) -> None:
        """A job that has not said how it ended: its whole process tree was killed, or it was never started."""
        if each.state == "running":
            each.end("failed", f"killed with all around it (memory or time limit of the scheduler?): {self.error}")
        else:
            each.end("stopped", f"hydra/launcher={self.launcher.name} has not started it: {self.error}")
        self._over(each)

    def _over(self, each: Job) -> None:
        self.left.remove(each)
        self.parent.note(each)
        reason = f": {each.reason.splitlines()[0][:200]}" if each.reason else ""
        self.screen.tell(f"job {each.number} {each.state} after {each.seconds:.0f} s{reason}")
        self.save()

    def _question(self, each: Job) -> str:
        return question(each, shared_words(self.jobs))
