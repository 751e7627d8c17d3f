"""The sweep's own run in MLflow: the question, the jobs below it, the best of them."""

import contextlib
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sft_exp import record, rundir, tracking_store
from sft_exp.request import Request
from sft_exp.schema import Sweep, Tracking, TrackingKind
from sft_exp.sweeps.job import Job
from sft_exp.sweeps.objective import best, value

if TYPE_CHECKING:
    from mlflow import MlflowClient

PER_JOB = ("eval_loss", "loss_last", "tokens_per_second", "peak_memory_gib")
"""Fields of `result.json` that the sweep's run has as metrics, with the job's number as step."""


class Parent:
    """The MLflow run above those of the jobs. Trouble with it is told at the end and stops no job."""

    def __init__(self, settings: Tracking, sweep: Sweep) -> None:
        self.settings, self.sweep = settings, sweep
        self.run_id: str | None = None
        self.error: str | None = None

    def open(self, name: str, tags: dict[str, str], earlier: str | None) -> str | None:
        """Make the run, or go on in an earlier one; its id."""
        if self.settings.kind is TrackingKind.none:
            return None
        with self._excused():
            client, experiment_id = tracking_store.client(self.settings)
            if earlier:
                client.update_run(earlier, status="RUNNING")
                self.run_id = earlier
            else:
                self.run_id = str(client.create_run(experiment_id, run_name=name, tags=tags).info.run_id)
        return self.run_id

    def note(self, job: Job) -> None:
        """End the job's run as FAILED if its process was killed before it could, and drop an attempt started over."""
        if self.run_id is None or not job.run.tracking.exists():
            return
        with self._excused():
            client, _ = tracking_store.client(self.settings)
            child = str(rundir.read_json(job.run.tracking)["run_id"])
            if job.state == "failed" and client.get_run(child).info.status == "RUNNING":
                for key, text in (("outcome", job.state), ("reason", job.reason[:5000])):
                    client.set_tag(child, key, text)
                client.set_terminated(child, "FAILED")

    def forget(self, job: Job) -> None:
        """Delete the run of an attempt that has no checkpoint: the job starts over and would count twice."""
        if self.run_id is None or not job.run.tracking.exists() or job.run.newest_checkpoint():
            return
        with self._excused():
            tracking_store.client(self.settings)[0].delete_run(rundir.read_json(job.run.tracking)["run_id"])

    def close(self, jobs: Sequence[Job], status: str) -> None:
        """Summary of the jobs, tag on the best one, end status."""
        if self.run_id is None:
            return
        with self._excused():
            client, _ = tracking_store.client(self.settings)
            for job in jobs:
                client.set_tag(self.run_id, f"job.{job.number}", f"{job.state}: {job.overrides}"[:5000])
            for key, number in counts(jobs).items():
                client.log_metric(self.run_id, key, number)
            self._jobs(client, jobs)
            self._best(client, jobs)
            client.set_terminated(self.run_id, status)

    def _jobs(self, client: "MlflowClient", jobs: Sequence[Job]) -> None:
        assert self.run_id
        known = client.get_run(self.run_id).data.metrics
        for key in PER_JOB:
            facts = {job.number: rundir.read_json(job.run.result).get(key) for job in jobs if job.run.result.exists()}
            numbers = {number: float(fact) for number, fact in facts.items() if fact is not None}
            if numbers and f"median/{key}" not in known:
                for number, fact in numbers.items():
                    client.log_metric(self.run_id, f"jobs/{key}", fact, step=number)
                client.log_metric(self.run_id, f"median/{key}", statistics.median(numbers.values()))

    def _best(self, client: "MlflowClient", jobs: Sequence[Job]) -> None:
        assert self.run_id
        job = best(jobs, self.sweep)
        if job is None or not job.run.tracking.exists():
            return
        child, name = str(rundir.read_json(job.run.tracking)["run_id"]), self.sweep.objective[0]
        client.set_tag(child, "sweep.best", "true")
        tags = {"best.job": str(job.number), "best.run_id": child, "best.overrides": job.overrides[:5000]}
        for key, text in tags.items():
            client.set_tag(self.run_id, key, text)
        client.log_metric(self.run_id, f"best/{name}", value(job, name) or 0.0)

    @contextlib.contextmanager
    def _excused(self) -> Any:
        try:
            yield
        except Exception as error:  # tracking must never end a sweep; the reason is shown at the end
            self.error = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def counts(jobs: Sequence[Job]) -> dict[str, float]:
    """How many jobs ended in which way."""
    states = [job.state for job in jobs]
    return {f"sweep.{state}": float(states.count(state)) for state in ("finished", "failed", "refused", "pruned")}


def tags(request: Request, count: int, folder: Path) -> dict[str, str]:
    """What the sweep's run says of the sweep."""
    facts = record.git(record.code_folder())[0]
    return {
        "sweep.command": command(request),
        "sweep.jobs": str(count),
        "sweep.folder": str(folder),
        "sweep.objective": ", ".join(request.experiment.sweep.objective),
        "git.commit": str(facts.get("commit", "none")),
        "git.dirty": str(facts.get("dirty", "unknown")).lower(),
    }


def command(request: Request) -> str:
    """The command line of the sweep, without credentials."""
    return " ".join(["python", "-m", "sft_exp", *map(record.redact, request.argv)])
