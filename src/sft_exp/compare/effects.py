"""Which variable moved which metric: differences between levels, all others equal, against the noise of seeds.

A cell is a setting of all variables; its runs differ in the seed only. The effect of a level is the mean difference to
the first level over the cells that are equal in every other variable, so that designs with holes stay fair. Noise is
the standard deviation within cells, pooled over all cells (Montgomery, Design and Analysis of Experiments, chapters 3
and 5).
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from sft_exp.compare.facts import SEED, Facts

T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % quantiles of Student's t for 1 to 30 degrees of freedom, from any statistical table."""

Cell = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Effect:
    """How a metric changes from `reference` to `level` of one variable. `margin` is half of the 95 % interval."""

    factor: str
    level: str
    reference: str
    metric: str
    difference: float
    margin: float | None
    """None without repeated seeds: the noise is not known then."""

    @property
    def beyond_noise(self) -> bool | None:
        """Whether the interval leaves out zero; None if the noise is not known."""
        return None if self.margin is None else abs(self.difference) > self.margin


def cells(runs: Sequence[Facts], factors: Sequence[str]) -> dict[Cell, list[Facts]]:
    """Runs by their setting of the variables, in the order of the runs."""
    found: dict[Cell, list[Facts]] = {}
    for run in runs:
        found.setdefault(tuple(run.value(factor) for factor in factors), []).append(run)
    return found


def values(runs: Sequence[Facts], metric: str) -> list[float]:
    """Finite values of a metric."""
    found = [run.metrics[metric] for run in runs if metric in run.metrics]
    return [value for value in found if math.isfinite(value)]


def seeds_repeat(runs: Sequence[Facts]) -> bool:
    """Whether the seed was varied, without which runs of one cell would be copies."""
    return len({run.value(SEED) for run in runs}) > 1


def pooled(samples: Sequence[Sequence[float]]) -> tuple[float, int] | None:
    """Standard deviation within cells and its degrees of freedom; None if no cell has two runs."""
    repeated = [sample for sample in samples if len(sample) > 1]
    freedom = sum(len(sample) - 1 for sample in repeated)
    if not freedom:
        return None
    squares = sum(statistics.variance(sample) * (len(sample) - 1) for sample in repeated)
    return math.sqrt(squares / freedom), freedom


def effects(runs: Sequence[Facts], factors: Sequence[str], metrics: Sequence[str]) -> list[Effect]:
    """Effects of each variable on each metric; those that no pair of cells can tell are left out."""
    grouped = cells(runs, factors)
    found = []
    for metric in metrics:
        samples = {cell: sample for cell, members in grouped.items() if (sample := values(members, metric))}
        noise = pooled(list(samples.values()))
        for position, factor in enumerate(factors):
            reference, *others = dict.fromkeys(cell[position] for cell in grouped)
            for level in others:
                if effect := _effect(samples, position, reference, level, noise):
                    found.append(Effect(factor, level, reference, metric, *effect))
    return found


def _effect(
    samples: Mapping[Cell, Sequence[float]], position: int, reference: str, level: str, noise: tuple[float, int] | None
) -> tuple[float, float | None] | None:
    """Mean difference over matched cells, and the half width of its 95 % interval."""
    pairs = [
        (samples[match], sample)
        for cell, sample in samples.items()
        if cell[position] == level and (match := (*cell[:position], reference, *cell[position + 1 :])) in samples
    ]
    if not pairs:
        return None
    difference = statistics.fmean(statistics.fmean(ours) - statistics.fmean(base) for base, ours in pairs)
    if noise is None:
        return difference, None
    deviation, freedom = noise
    variance = sum(deviation**2 * (1 / len(base) + 1 / len(ours)) for base, ours in pairs) / len(pairs) ** 2
    quantile = T_975[freedom - 1] if freedom <= len(T_975) else 1.96
    return difference, quantile * math.sqrt(variance)


def confounded(runs: Sequence[Facts], factors: Sequence[str]) -> list[str]:
    """Variables whose levels never meet with all others equal: what they did cannot be told from the others."""
    grouped = cells(runs, factors)
    lost = []
    for position, factor in enumerate(factors):
        rests = [(*cell[:position], *cell[position + 1 :]) for cell in grouped]
        if len(set(rests)) == len(rests):
            lost.append(factor)
    return lost if len(factors) > 1 else []
