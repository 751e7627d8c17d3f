"""Settings in the order of one metric, and whether the first is better than the second by more than noise."""

import dataclasses
import statistics
from collections.abc import Sequence

from sft_exp.compare import effects
from sft_exp.compare.effects import Cell
from sft_exp.compare.facts import Facts

HIGHER_IS_BETTER = (
    "accuracy",
    "per_second",
    "mfu",
    "exact_match",
    "rouge",
    "chrf",
    "p_eos",
    "ended",
    "kept",
    "well_formed",
)
"""Parts of metric names; for all others, such as losses, memory and repetition, lower is better."""


@dataclasses.dataclass(frozen=True)
class Place:
    """One setting of the variables with its mean over seeds and their standard deviation, if there are several."""

    cell: Cell
    runs: list[Facts]
    mean: float
    deviation: float | None


def places(runs: Sequence[Facts], factors: Sequence[str], metric: str) -> list[Place]:
    """Best first; settings without a finite value of the metric are left out."""
    found = []
    for cell, members in effects.cells(runs, factors).items():
        if sample := effects.values(members, metric):
            deviation = statistics.stdev(sample) if len(sample) > 1 else None
            found.append(Place(cell, members, statistics.fmean(sample), deviation))
    return sorted(found, key=lambda place: place.mean, reverse=higher_is_better(metric))


def higher_is_better(metric: str) -> bool:
    """Direction of a metric, by its name."""
    return any(part in metric for part in HIGHER_IS_BETTER)


def verdict(found: Sequence[Place], factors: Sequence[str], metric: str) -> str:
    """One sentence: which setting is best, and by how much against the noise."""
    if not found:
        return f"no run has logged {metric}."
    best, named = found[0], setting(factors, found[0].cell)
    if len(found) == 1:
        return f"{named} is the only setting: {metric} {best.mean:.4g}."
    samples = [effects.values(place.runs, metric) for place in found]
    noise, gap = effects.pooled(samples), abs(found[1].mean - best.mean)
    second = f"the second, {setting(factors, found[1].cell)}"
    if noise is None:
        return (
            f"{named} has the best {metric}, {best.mean:.4g}, {gap:.2g} from {second}; whether that is more than noise "
            "cannot be told from one seed: sweep train.seed=1,2,3."
        )
    deviation, freedom = noise
    quantile = effects.T_975[min(freedom, len(effects.T_975)) - 1]
    margin = quantile * deviation * (1 / len(samples[0]) + 1 / len(samples[1])) ** 0.5
    if gap <= margin:
        return (
            f"{named} has the best {metric}, {best.mean:.4g}, but {second} is only {gap:.2g} away, which is within the "
            f"noise of the seeds (95 %: {margin:.2g})."
        )
    return (
        f"{named} is best: {metric} {best.mean:.4g}, {gap:.2g} from {second} (noise of the seeds, 95 %: {margin:.2g})."
    )


def setting(factors: Sequence[str], cell: Cell) -> str:
    """Readable name of a setting."""
    return " ".join(f"{factor}={value or 'none'}" for factor, value in zip(factors, cell, strict=True)) or "the run"
