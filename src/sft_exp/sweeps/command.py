"""`python -m sft_exp -m ...`: every combination as a job, and a table of how they went."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sft_exp import check
from sft_exp.errors import ConfigError, RunFailed
from sft_exp.machine import Machine, look
from sft_exp.progress import python, show
from sft_exp.request import Request
from sft_exp.resolve import resolve
from sft_exp.rules import sweep as rules
from sft_exp.sweeps import going_on, objective, parent, ready, screen
from sft_exp.sweeps import job as jobs
from sft_exp.sweeps.driver import Driver, Source
from sft_exp.sweeps.handover import Handover
from sft_exp.sweeps.job import Job
from sft_exp.sweeps.launcher import Launcher
from sft_exp.sweeps.parent import Parent


class Combinations:
    """Jobs that are all known from the start."""

    def __init__(self, all_jobs: list[Job]) -> None:
        self.jobs = all_jobs

    def next(self) -> Job | None:
        """The first job that waits or was stopped."""
        return next((job for job in self.jobs if job.state in ("waiting", "stopped")), None)

    def progress(self, job: Job, rows: Sequence[dict[str, Any]]) -> bool:
        """No job is given up."""
        return False

    def ended(self, job: Job) -> None:
        """Nothing depends on it."""


def run(requests: list[Request], fresh: Path, launcher: Launcher | None = None) -> None:
    """Run all jobs that pass their checks, here or by one of Hydra's launchers.

    Raises RunFailed at the end if any was refused or failed.
    """
    for request in requests:  # how the sweep goes on is no part of what its jobs are
        request.overrides = [word for word in request.overrides if not word.startswith("sweep.")]
    machine = look()
    settings = requests[0].experiment.sweep
    rules.refuse(settings, by_launcher=launcher is not None)
    key = jobs.key(requests)
    folder = going_on.folder(settings, key, fresh)
    if folder == fresh:
        all_jobs = [jobs.new(number, request, folder) for number, request in enumerate(requests)]
        check_all(all_jobs, machine, elsewhere=launcher is not None)
        folder.mkdir(parents=True)
        show(f"sweep    {folder}: {len(all_jobs)} jobs")
        head: dict[str, Any] = {"key": key}
    else:
        head, all_jobs = continued(folder, again=settings.resume is not None)
        for job, request in zip(all_jobs, requests, strict=True):
            job.request = request
    drive(Combinations(all_jobs), requests[0], folder, head, machine, launcher)


def check_all(all_jobs: Sequence[Job], machine: Machine, *, elsewhere: bool = False) -> None:
    """Check every job before the first one starts. Raises ConfigError if all are refused; names those that are.

    What concerns the machine is left to the job itself if it runs `elsewhere`.
    """
    for job in all_jobs:
        assert job.request is not None
        asked = job.request.experiment
        experiment = resolve(asked if elsewhere else ready.shared(asked, machine), machine)
        problems = [*rules.of_job(experiment), *check.check(experiment, machine, plan=elsewhere).problems]
        if problems:
            job.end("refused", " ".join(problems))
    refused = [job for job in all_jobs if job.state == "refused"]
    if len(refused) == len(all_jobs):
        raise ConfigError(*dict.fromkeys(job.reason for job in refused))
    common = screen.shared_words(all_jobs)
    for job in refused:
        show(f"job {job.number} refused ({screen.question(job, common)}): {job.reason}")


def continued(folder: Path, *, again: bool) -> tuple[dict[str, Any], list[Job]]:
    """Head and jobs of a sweep that goes on; `again` tries failed jobs once more."""
    head, all_jobs = jobs.read(folder)
    for job in all_jobs:
        if not job.over:
            ready.await_end(job, folder / f"{job.number}.lock")
            ready.recall(job)
        if again and job.state == "failed":
            job.end("waiting")
    done = sum(job.over for job in all_jobs)
    show(f"sweep    goes on in {folder}: {done} jobs are done (a new one: sweep.resume={going_on.NEVER})")
    return head, all_jobs


def drive(
    source: Source, first: Request, folder: Path, head: dict[str, Any], machine: Machine,
    launcher: Launcher | None = None,
) -> None:  # fmt: skip
    """Run the source's jobs under one parent run. Raises RunFailed if any job did not finish."""
    settings = first.experiment.sweep
    tracking = resolve(first.experiment, machine).tracking
    above = Parent(tracking, settings)
    head |= {"command": parent.command(first), "per_device": settings.per_device, "ended": None}
    with going_on.locked(folder):
        jobs.write(folder, head, source.jobs)
        name = f"sweep {first.choices.get('sweep') or ' x '.join(varied(source.jobs)) or folder.name}"
        tags = parent.tags(first, len(source.jobs), folder)
        head["parent_run_id"] = above.open(name, tags, head.get("parent_run_id"))
        driver = (
            Handover(launcher, source.jobs, folder, head, above)
            if launcher
            else Driver(source, folder, head, machine, above)
        )
        status = "KILLED"
        try:
            driver.run()
            head["ended"] = time.time()
            status = "FINISHED" if all(job.state in ("finished", "pruned") for job in source.jobs) else "FAILED"
        finally:
            driver.save()
            above.close(source.jobs, status)
            screen.closing(source.jobs, folder)
            if above.error:
                show(f"note: MLflow has not got everything of the sweep: {above.error}")
    _last_words(source.jobs, first)


def _last_words(all_jobs: Sequence[Job], first: Request) -> None:
    settings = first.experiment.sweep
    if (job := objective.best(all_jobs, settings)) is not None:
        name = settings.objective[0]
        show(f"\nbest {name}: {objective.value(job, name):.6g} of job {job.number}, {job.folder}")
    if len(finished := [job for job in all_jobs if job.state == "finished"]) > 1:
        show(f"compare  {python()} -m sft_exp compare {Path(finished[0].folder).parent}")
    bad = [job for job in all_jobs if job.state not in ("finished", "pruned")]
    if bad:
        names = ", ".join(f"{job.number} {job.state}" for job in bad)
        raise RunFailed(f"{len(bad)} of {len(all_jobs)} jobs did not finish: {names}.")


def varied(all_jobs: Sequence[Job]) -> list[str]:
    """Keys whose values differ between jobs: the question the sweep asks."""
    values: dict[str, set[str]] = {}
    for job in all_jobs:
        for word in job.overrides.split():
            key, _, value = word.partition("=")
            values.setdefault(key, set()).add(value)
    return [key for key, found in values.items() if len(found) > 1]
