"""Batch arithmetic: global batch = micro batch x accumulation x processes."""

from dataclasses import dataclass

MICRO_BATCH_LIMIT = 8
"""Largest micro batch chosen where memory cannot be planned: a 0.5B model at 1,024 tokens needs up to 24 GiB."""


@dataclass(frozen=True)
class Batch:
    """How one optimizer step is cut up."""

    micro: int
    """Conversations per rank and forward pass."""
    accumulation: int
    """Forward passes per optimizer step."""
    processes: int

    @property
    def total(self) -> int:
        """Conversations per optimizer step."""
        return self.micro * self.accumulation * self.processes

    def __str__(self) -> str:
        return (
            f"{self.total} = {self.micro} per forward pass x {self.accumulation} accumulated x {self.processes} "
            "processes"
        )


def split(global_batch: int, micro_batch: int | None, processes: int) -> Batch:
    """Cut the global batch up; `problem` must be None before."""
    share = global_batch // processes
    micro = micro_batch or max(n for n in range(1, MICRO_BATCH_LIMIT + 1) if share % n == 0)
    return Batch(micro, share // micro, processes)


def problem(global_batch: int, micro_batch: int | None, processes: int) -> str | None:
    """One sentence if the numbers do not divide, with the nearest values that do."""
    unit = (micro_batch or 1) * processes
    if micro_batch is not None and micro_batch < 1:
        return f"train.micro_batch={micro_batch} must be at least 1."
    if global_batch < 1:
        return f"train.global_batch={global_batch} must be at least 1: use {unit} or a multiple of it."
    if global_batch % unit == 0:
        return None
    below, above = global_batch // unit * unit, -(-global_batch // unit) * unit
    values = " or ".join(str(value) for value in sorted({below, above}) if value > 0)
    by = f"{processes} processes" + (f" x train.micro_batch={micro_batch}" if micro_batch else "")
    return f"train.global_batch={global_batch} does not divide by {by} = {unit}: use {values}."
