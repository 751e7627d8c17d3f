"""What jobs are compared by: the value of a logged metric, and which job has the best."""

import math
import statistics
from collections.abc import Sequence

from sft_exp.metrics import read_rows
from sft_exp.schema import Direction, Sweep
from sft_exp.sweeps.job import Job


def value(job: Job, metric: str) -> float | None:
    """The job's last value of a metric; of speeds and memory the median, since single ones scatter."""
    found = [float(row[metric]) for row in read_rows(job.run.metrics)[0] if metric in row]
    if not found:
        return None
    return statistics.median(found) if metric.startswith("perf/") else found[-1]


def values(job: Job, settings: Sweep) -> list[float] | None:
    """The job's value of each objective; None if one is missing or no finite number."""
    found = [value(job, metric) for metric in settings.objective]
    return [each for each in found if each is not None] if all(_finite(each) for each in found) else None


def best(jobs: Sequence[Job], settings: Sweep) -> Job | None:
    """The finished job with the best value of the first objective."""
    known = [(values(job, settings), job) for job in jobs if job.state == "finished"]
    sign = -1 if settings.direction[0] is Direction.maximize else 1
    ranked = [(sign * found[0], job.number, job) for found, job in known if found]
    return min(ranked)[2] if ranked else None


def _finite(number: float | None) -> bool:
    return number is not None and math.isfinite(number)
