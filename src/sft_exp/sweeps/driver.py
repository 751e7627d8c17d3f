"""The loop of a sweep: start what fits, watch what runs, take note of what ends."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from sft_exp import check, launch
from sft_exp.errors import RunStopped
from sft_exp.machine import Machine
from sft_exp.resolve import resolve
from sft_exp.schema import Hw
from sft_exp.sweeps import ending, job, ready
from sft_exp.sweeps.job import Job
from sft_exp.sweeps.parent import Parent
from sft_exp.sweeps.processes import JobProcesses, Running
from sft_exp.sweeps.screen import Screen, question, shared_words, title
from sft_exp.sweeps.slots import Slots
from sft_exp.sweeps.view import View

PAUSE_S = 0.2


class Source(Protocol):
    """Where jobs come from: a list, or a search."""

    jobs: list[Job]

    def next(self) -> Job | None:
        """The next job to start, the same one until it was started or refused; None if there is none for now."""

    def progress(self, job: Job, rows: Sequence[dict[str, Any]]) -> bool:
        """Take new metrics of a running job; whether it should end."""

    def ended(self, job: Job) -> None:
        """A job is over."""


class Driver:
    """Runs the jobs of one source in one folder."""

    def __init__(self, source: Source, folder: Path, head: dict[str, Any], machine: Machine, parent: Parent) -> None:
        self.source, self.folder, self.head = source, folder, head
        self.machine, self.parent = machine, parent
        per_device = int(head["per_device"])
        self.slots = Slots([card.index for card in machine.usable()], per_device)
        self.processes, self.screen = JobProcesses(folder), Screen()
        self.views: dict[int, View] = {}
        self._accepted: dict[int, Hw] = {}
        """Resolved profile of each job that may start."""
        self._pruned: set[int] = set()

    def run(self) -> None:
        """Until no job is left. On a signal all jobs are ended and RunStopped goes on to the caller."""
        try:
            with launch.stop_on_signal():
                while self._start() or self.processes.running:
                    self._collect()
                    self._follow()
                    time.sleep(PAUSE_S)
        except (RunStopped, KeyboardInterrupt):
            self.screen.tell(f"ending {len(self.processes.running)} running jobs")
            raise
        finally:
            self.processes.end()
            for running in list(self.processes.running.values()):
                running.job.seconds += time.monotonic() - running.started
                self._note(running, running.child.returncode)

    def save(self) -> None:
        """Write `sweep.json`."""
        job.write(self.folder, self.head, self.source.jobs)

    def _start(self) -> bool:
        """Start jobs until one does not fit; whether any is waiting."""
        # A search knows more the later it is asked for a trial.
        while self.slots.room and (waiting := self.source.next()):
            if waiting.number not in self._accepted and not self._accept(waiting):
                continue
            assert waiting.request is not None
            devices = self.slots.take(self._accepted[waiting.number], waiting.request.experiment.hw.devices)
            if devices is None:
                return True
            self._launch(waiting, devices)
        return not self.slots.room

    def _accept(self, waiting: Job) -> bool:
        """Check a job with its share of the machine: in a search no other check comes before."""
        assert waiting.request is not None
        waiting.request.experiment = ready.shared(waiting.request.experiment, self.machine)
        resolved = resolve(waiting.request.experiment, self.machine)
        problems = check.check(resolved, self.machine).problems
        if problems:
            waiting.end("refused", " ".join(problems))
            self._over(waiting)
            return False
        self._accepted[waiting.number] = resolved.hw
        return True

    def _launch(self, waiting: Job, devices: list[int]) -> None:
        self.parent.forget(waiting)
        assert waiting.request is not None
        waiting.request.title = title(waiting, self.source.jobs)
        port = self.processes.port()
        request = ready.to_start(waiting, devices, port, self.parent.run_id)
        words = f"goes on from {waiting.run.newest_checkpoint()}" if request.experiment.resume else "started"
        cards = ",".join(map(str, request.experiment.hw.devices or []))
        self.processes.start(waiting, request, devices)
        self.views[waiting.number] = View(waiting)
        what = question(waiting, shared_words(self.source.jobs))
        self.screen.tell(f"job {waiting.number} {words}{f' on card {cards}' if cards else ''}: {what}")
        self.save()

    def _follow(self) -> None:
        for number in list(self.processes.running):
            view = self.views[number]
            rows = view.update()
            if rows and number not in self._pruned and self.source.progress(view.job, rows):
                self._pruned.add(number)
                self.processes.prune(number)
        self.screen.update(self.source.jobs, {number: self.views[number] for number in self.processes.running})

    def _collect(self) -> None:
        for running, code in self.processes.ended():
            self.slots.give(running.devices)
            self._note(running, code)

    def _note(self, running: Running, code: int) -> None:
        ending.note(running.job, code, self.processes.log(running.job))
        self.parent.note(running.job)
        self._over(running.job)

    def _over(self, ended: Job) -> None:
        if ended.over:
            self.source.ended(ended)
        reason = f": {ended.reason.splitlines()[0][:200]}" if ended.reason else ""
        self.screen.tell(f"job {ended.number} {ended.state} after {ended.seconds:.0f} s{reason}")
        self.save()
