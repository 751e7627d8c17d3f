"""How far a job is, as its files say: step, losses, speed, memory, time left."""

import math
import os
from dataclasses import dataclass, field
from typing import Any

from sft_exp import rundir
from sft_exp.metrics import rows_of
from sft_exp.sweeps.job import Job


@dataclass
class View:
    """What is known of one job from its metrics file, read on from where it was read before."""

    job: Job
    offset: int = 0
    inode: int = 0
    """Of the metrics file: a resumed job takes rows back by putting another in its place."""
    last: dict[str, Any] = field(default_factory=dict)
    """Newest value of each metric."""

    def update(self) -> list[dict[str, Any]]:
        """Rows that have come since the last call."""
        try:
            with self.job.run.metrics.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                rows, self.offset = rows_of(file, self.offset if inode == self.inode else 0)
        except FileNotFoundError:
            return []
        self.inode = inode
        for row in rows:
            self.last |= row
        return rows

    def number(self, key: str) -> float | None:
        """Newest value of a metric, of the result if there is one."""
        value = self.last.get(key)
        return None if value is None else float(value)

    @property
    def step(self) -> str:
        """Steps done and in all."""
        total = self.number("train/total_steps")
        return f"{int(self.last['step'])}/{int(total)}" if total else ""

    @property
    def seconds_left(self) -> float | None:
        """Time left by the newest step's speed."""
        total, each = self.number("train/total_steps"), self.number("perf/step_seconds")
        if not total or not each or self.job.over:
            return None
        return max(0.0, total - float(self.last["step"])) * each

    def cells(self) -> list[str]:
        """Step, loss, eval loss, tokens/s, memory and time left, each empty if unknown."""
        left = self.seconds_left
        return [
            self.step,
            _form(self.number("train/loss"), ".4f"),
            _form(self.number("eval/loss"), ".4f"),
            _form(self.number("perf/tokens_per_second"), ",.0f"),
            _form(self.number("perf/peak_memory_gib"), ".1f"),
            "" if left is None else clock(left),
        ]


HEAD = ("step", "loss", "eval", "tokens/s", "GiB", "left")
"""Names of `View.cells`."""


def _form(value: float | None, spec: str) -> str:
    return "" if value is None else format(value, spec) if math.isfinite(value) else str(value)


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours if there are any."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def result(job: Job) -> dict[str, Any]:
    """The job's `result.json`, empty if it has none."""
    file = job.run.result
    return rundir.read_json(file) if file.exists() else {}
