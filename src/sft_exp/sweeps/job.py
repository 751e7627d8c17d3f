"""One job of a sweep, and the record `sweep.json` of all of them."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sft_exp import rundir
from sft_exp.request import Request, to_plain
from sft_exp.rundir import RunDir

RECORD = "sweep.json"
OVER = ("finished", "failed", "refused", "pruned")
"""States of a job that is not started again when its sweep goes on."""


@dataclass(kw_only=True)
class Job:
    """One job and how it went; `waiting`, `running`, `stopped` or one of `OVER`."""

    number: int
    overrides: str
    folder: str
    state: str = "waiting"
    reason: str = ""
    seconds: float = 0.0
    """Seconds over all starts."""
    request: Request | None = field(default=None, repr=False, compare=False)
    """What the job trains; not in the record."""

    @property
    def run(self) -> RunDir:
        """The job's run folder."""
        return RunDir(Path(self.folder))

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self.state in OVER

    def end(self, state: str, reason: str = "") -> None:
        """Note how the job went."""
        self.state, self.reason = state, reason


def new(number: int, request: Request, folder: Path) -> Job:
    """A job that waits, with a run folder of its own below the sweep's."""
    name = f"{number}-{rundir.run_name(request.experiment)}"
    return Job(number=number, overrides=" ".join(request.overrides), folder=str(folder / name), request=request)


def key(requests: Sequence[Request]) -> str:
    """Equal for equal commands: SHA-256 over what all jobs are composed to."""
    plain = [without_resume(request) for request in requests]
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()


def without_resume(request: Request) -> dict[str, Any]:
    """The experiment without what only says how the sweep goes on."""
    experiment = dict(to_plain(request.experiment))
    experiment["sweep"] = {**experiment["sweep"], "resume": None}
    return experiment


def write(folder: Path, head: dict[str, Any], jobs: Sequence[Job]) -> None:
    """Write the sweep's record."""
    plain = [{name: value for name, value in vars(job).items() if name != "request"} for job in jobs]
    rundir.write_json(folder / RECORD, {**head, "jobs": plain})


def read(folder: Path) -> tuple[dict[str, Any], list[Job]]:
    """Head and jobs of a sweep's record."""
    head = rundir.read_json(folder / RECORD)
    known = {item.name for item in dataclasses.fields(Job)}
    jobs = [Job(**{name: value for name, value in job.items() if name in known}) for job in head.pop("jobs")]
    return head, jobs
