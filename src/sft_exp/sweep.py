"""A sweep: its jobs one after the other, each in a fresh process, under one parent run in MLflow."""

import contextlib
import dataclasses
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sft_exp import check, launch, record, rundir, tracking_store
from sft_exp.descendants import die_with_parent
from sft_exp.errors import ConfigError, RunFailed, RunStopped
from sft_exp.machine import look
from sft_exp.progress import show
from sft_exp.request import Request
from sft_exp.resolve import resolve
from sft_exp.schema import Tracking, TrackingKind

END_GRACE_S = 2 * launch.GRACE_S
"""Seconds a job has to end its own ranks before it is killed."""


@dataclasses.dataclass(kw_only=True)
class Job:
    """One job and how it went."""

    number: int
    overrides: str
    folder: str
    state: str = "waiting"
    reason: str = ""
    seconds: float = 0.0


def run(requests: list[Request], folder: Path) -> None:
    """Run all jobs that pass their checks. Raises RunFailed at the end if any was refused or failed."""
    jobs = [_job(number, request, folder) for number, request in enumerate(requests)]
    settings = _check_all(requests, jobs)
    if all(job.state == "refused" for job in jobs):
        raise ConfigError(*dict.fromkeys(job.reason for job in jobs))
    folder.mkdir(parents=True)
    parent = _open_parent(requests[0], settings, jobs, folder)
    try:
        for job, request in zip(jobs, requests, strict=True):
            if job.state == "waiting":
                _run_job(job, request, folder, parent)
                _save(folder, jobs)
    finally:
        _save(folder, jobs)
        _close_parent(settings, jobs, parent)
        _table(jobs, folder)
    bad = [job for job in jobs if job.state != "finished"]
    if bad:
        raise RunFailed(
            f"{len(bad)} of {len(jobs)} jobs did not finish: {', '.join(f'{j.number} {j.state}' for j in bad)}."
        )


def _job(number: int, request: Request, folder: Path) -> Job:
    name = rundir.run_name(request.experiment)
    return Job(number=number, overrides=" ".join(request.overrides), folder=str(folder / f"{number}-{name}"))


def _check_all(requests: list[Request], jobs: list[Job]) -> Tracking:
    """Check every job before the first one starts; those that are refused are named at once and left out.

    Returns the first job's resolved tracking, which is the sweep's.
    """
    machine = look()
    resolved = [resolve(request.experiment, machine) for request in requests]
    for experiment, job in zip(resolved, jobs, strict=True):
        problems = check.check(experiment, machine).problems
        if problems:
            job.state, job.reason = "refused", " ".join(problems)
            show(f"job {job.number} refused ({job.overrides}): {job.reason}")
    return resolved[0].tracking


def _run_job(job: Job, request: Request, folder: Path, parent: str | None) -> None:
    show(f"\n--- job {job.number}: {job.overrides}")
    file = folder / f"{job.number}.json"
    rundir.write_json(file, dataclasses.replace(request, folder=job.folder, parent_run_id=parent))
    started = time.monotonic()
    job.state = "running"
    code = _start(file)
    job.seconds = time.monotonic() - started
    status = Path(job.folder) / "status.json"
    recorded = rundir.read_json(status) if status.exists() else {}
    job.state = "finished" if code == 0 else str(recorded.get("state", "refused" if code == 2 else "failed"))
    if job.state == "running":  # killed before it could record its end
        job.state = "failed"
    job.reason = str(recorded.get("reason") or ("" if code == 0 else f"exit code {code}"))


def _start(file: Path) -> int:
    """Run one job to its end; a signal is passed on, waited for, and ends the sweep too."""
    child = subprocess.Popen(
        [sys.executable, "-m", "sft_exp.job", str(file)], start_new_session=True, preexec_fn=die_with_parent
    )
    with launch.stop_on_signal():
        try:
            return child.wait()
        except RunStopped:
            child.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(END_GRACE_S)
            child.kill()
            raise


def _open_parent(request: Request, settings: Tracking, jobs: list[Job], folder: Path) -> str | None:
    if settings.kind is TrackingKind.none:
        return None
    client, experiment_id = tracking_store.client(settings)
    facts = record.git(record.code_folder())[0]
    name = f"sweep {request.choices.get('sweep') or ' x '.join(_swept(jobs)) or folder.name}"
    tags = {
        "sweep.command": " ".join(["python", "-m", "sft_exp", *map(record.redact, request.argv)]),
        "sweep.jobs": str(len(jobs)),
        "sweep.folder": str(folder),
        "git.commit": str(facts.get("commit", "none")),
        "git.dirty": str(facts.get("dirty", "unknown")).lower(),
    }
    run_id = str(client.create_run(experiment_id, run_name=name, tags=tags).info.run_id)
    for job in jobs:
        client.set_tag(run_id, f"job.{job.number}", job.overrides)
    return run_id


def _swept(jobs: list[Job]) -> list[str]:
    """Keys whose values differ between jobs: the question the sweep asks."""
    values: dict[str, set[str]] = {}
    for job in jobs:
        for word in job.overrides.split():
            key, _, value = word.partition("=")
            values.setdefault(key, set()).add(value)
    return [key for key, found in values.items() if len(found) > 1]


def _close_parent(settings: Tracking, jobs: list[Job], run_id: str | None) -> None:
    if run_id is None:
        return
    client, _ = tracking_store.client(settings)
    counts: dict[str, Any] = {"sweep.finished": sum(job.state == "finished" for job in jobs)}
    for key, value in counts.items():
        client.log_metric(run_id, key, float(value))
    ok = counts["sweep.finished"] == len(jobs)
    client.set_terminated(run_id, "FINISHED" if ok else "FAILED")


def _save(folder: Path, jobs: list[Job]) -> None:
    rundir.write_json(folder / "sweep.json", {"jobs": [dataclasses.asdict(job) for job in jobs]})


def _table(jobs: list[Job], folder: Path) -> None:
    show(f"\nsweep {folder}")
    for job in jobs:
        result = Path(job.folder) / "result.json"
        facts = rundir.read_json(result) if result.exists() else {}
        numbers = "".join(
            f"  {name} {float(facts[key]):.4f}"
            for name, key in (("loss", "loss_last"), ("eval", "eval_loss"))
            if facts.get(key) is not None
        )
        reason = f"  {job.reason.splitlines()[0][:160]}" if job.reason else ""
        show(f"  {job.number:>3}  {job.state:<9}{job.seconds:>6.0f} s  {job.overrides}{numbers}{reason}")
