"""A search: each job is a trial whose values Optuna chooses from what earlier ones have found."""

import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sft_exp import rundir
from sft_exp.errors import ConfigError
from sft_exp.machine import look
from sft_exp.progress import python, show
from sft_exp.request import Request
from sft_exp.rules import sweep as rules
from sft_exp.schema import Device, Sweep
from sft_exp.sweeps import command, going_on, objective
from sft_exp.sweeps import job as jobs
from sft_exp.sweeps.job import Job
from sft_exp.sweeps.study import Study

OFF = "sweep.sampler=null"
"""What makes a run of one trial out of the command of a search."""
Compose = Callable[[list[str]], Request]
"""From a command line to a request."""


class Trials:
    """Jobs asked for one by one; trial and job have the same number."""

    def __init__(self, study: Study, folder: Path, compose: Compose, words: list[str], known: list[Job]) -> None:
        self.study, self.folder, self.words, self.jobs = study, folder, words, known
        self.settings: Sweep = study.settings
        self._compose = compose
        for trial in study.asked()[len(known) :]:  # asked for just before the search was killed
            self._add(trial.params)
        for job, trial in zip(self.jobs, study.asked(), strict=True):
            if job.over:
                self.ended(job)
            else:
                job.request = self._request(trial.params)

    def next(self) -> Job | None:
        """A job that waits, else a new trial."""
        waiting = next((job for job in self.jobs if job.state in ("waiting", "stopped")), None)
        if waiting is None and not self.study.exhausted:
            waiting = self._add(self.study.ask().params)
        return waiting

    def progress(self, job: Job, rows: Sequence[dict[str, Any]]) -> bool:
        """Report evaluations before the last step."""
        hopeless, total = False, job.request.experiment.train.max_steps if job.request else None
        for row in rows:
            value, step = row.get(self.settings.objective[0]), int(row["step"])
            if value is None or len(self.settings.objective) > 1:
                continue
            value = float(value)
            hopeless = not math.isfinite(value) or self.study.report(job.number, value, step)
            hopeless = hopeless and (total is None or step < total)
        return hopeless

    def ended(self, job: Job) -> None:
        """Tell the study."""
        self.study.tell(job.number, job.state, objective.values(job, self.settings))

    def _add(self, values: dict[str, Any]) -> Job:
        job = jobs.new(len(self.jobs), self._request(values), self.folder)
        job.overrides = " ".join(word(key, value) for key, value in values.items())
        self.jobs.append(job)
        return job

    def _request(self, values: dict[str, Any]) -> Request:
        return self._compose(trial_words(self.words, values))


def trial_words(words: Sequence[str], values: dict[str, Any]) -> list[str]:
    """The command line of one trial."""
    return [*words, OFF, *(word(key, value) for key, value in values.items())]


def word(key: str, value: Any) -> str:
    """An override; numbers keep every digit."""
    text = {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else value
    return f"{key}={text}"


def run(request: Request, fresh: Path, compose: Compose) -> None:
    """Search. Raises ConfigError if it cannot start and RunFailed if a trial failed."""
    experiment, words = request.experiment, [each for each in request.argv if not each.startswith("sweep.resume=")]
    if problems := list(rules.of_search(experiment)):
        raise ConfigError(*problems)
    key = jobs.key([request])
    folder = going_on.folder(experiment.sweep, key, fresh)
    head: dict[str, Any] = {"key": key}
    known: list[Job] = []
    if folder == fresh:
        probe = compose(trial_words(words, {key: first(values) for key, values in experiment.sweep.space.items()}))
        command.check_all([jobs.new(0, probe, folder)], look())
        folder.mkdir(parents=True)
        show(f"search   {folder}: up to {experiment.sweep.trials} trials")
    else:
        head, known = command.continued(folder, again=False)
    trials = Trials(Study(folder, experiment.sweep, experiment.train.max_steps), folder, compose, words, known)
    try:
        command.drive(trials, request, folder, head, look())
    finally:
        last_words(trials)


def first(values: Any) -> Any:
    """A value of the space, to check one job before the search begins."""
    return values[0] if isinstance(values, list) else values["low"]


def last_words(trials: Trials) -> None:
    """The best values as the command that runs them."""
    states = [job.state for job in trials.jobs]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    show(f"\nsearch   {len(states)} trials: {counts}")
    for trial in trials.study.best():
        found = ", ".join(f"{n} {v:.6g}" for n, v in zip(trials.settings.objective, trial.values, strict=True))
        show(f"best     {found} (job {trial.number})")
        words = [*trial_words(trials.words, trial.params), *threads(trials.jobs[trial.number])]
        show(f"  {shlex.join([python(), '-m', 'sft_exp', *words])}")


def threads(job: Job) -> list[str]:
    """Threads of a job on the CPU: sums of floats depend on them, so the same value takes as many."""
    hw = rundir.read_json(job.run.config)["hw"]
    return [f"hw.threads={hw['threads']}"] if hw["device"] == Device.cpu.value else []
