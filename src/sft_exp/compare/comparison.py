"""Everything that is said about a set of runs, before it is said in text or as a page."""

import dataclasses
from collections.abc import Sequence

from sft_exp.compare import difference, effects, ranking
from sft_exp.compare.difference import Difference, Objection
from sft_exp.compare.effects import Effect
from sft_exp.compare.facts import Facts
from sft_exp.errors import ConfigError

COLUMNS = ("eval/loss", "train/loss", "train/grad_norm", "perf/tokens_per_second", "perf/peak_memory_gib")
"""Metrics that come first; those of probes and tasks follow."""
MORE = ("probe/", "eval/", "test/")
NOT_RESULTS = ("seconds", "entropy", "share_of_run")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What differs between runs, why some of it cannot be compared, and what the rest says."""

    runs: Sequence[Facts]
    factors: list[str]
    """Keys that were varied, the seed left out."""
    metrics: list[str]
    """Metrics worth comparing, the most asked for first."""
    differences: list[Difference]
    objections: list[Objection]
    metric: str
    """The one that settings are ranked by."""
    ranked: list[ranking.Place]
    """Settings, best first; empty where a ranking would be none."""
    effects: list[Effect]

    @property
    def caveat(self) -> str:
        """How the objections are introduced."""
        if not self.ranked:
            return f"not ranked by {self.metric}, since"
        if all(one.tokens_only for one in self.objections) and not difference.per_token(self.metric):
            return "losses and other means over tokens are not compared, since"
        return "ranked all the same, though"

    @property
    def verdict(self) -> str:
        """The ranking in one sentence."""
        return ranking.verdict(self.ranked, self.factors, self.metric) if self.ranked else ""

    @property
    def varying(self) -> list[str]:
        """Metrics that are not the same in all runs."""
        return [name for name in self.metrics if _varies(self.runs, name)]

    @property
    def constant(self) -> dict[str, float]:
        """The others with their value: nothing can have moved them."""
        return {name: self.runs[0].metrics[name] for name in self.metrics if not _varies(self.runs, name)}


def compare(runs: Sequence[Facts], metric: str, *, anyway: bool = False) -> Comparison:
    """Compare runs; `anyway` overrules the objections. Raises ConfigError for a metric that no run has logged."""
    factors, columns = difference.factors(runs), metrics(runs)
    if metric not in columns:
        raise ConfigError(f"--metric={metric} was logged by none of the runs: take one of {', '.join(columns)}.")
    objections = [*difference.objections(runs), *_confounded(runs, factors)]
    fair = [column for column in columns if anyway or not _against(objections, column)]
    return Comparison(
        runs=runs, factors=factors, metrics=columns, differences=difference.differences(runs), objections=objections,
        metric=metric, ranked=ranking.places(runs, factors, metric) if metric in fair else [],
        effects=effects.effects(runs, factors, [name for name in fair if _varies(runs, name)]) if factors else [],
    )  # fmt: skip


def metrics(runs: Sequence[Facts]) -> list[str]:
    """Metrics worth comparing that some run has logged."""
    logged = dict.fromkeys(key for run in runs for key in run.metrics)
    more = [key for key in logged if key.startswith(MORE) and not key.endswith(NOT_RESULTS)]
    return [key for key in dict.fromkeys([*COLUMNS, *more]) if key in logged]


def _varies(runs: Sequence[Facts], metric: str) -> bool:
    return len({run.metrics.get(metric) for run in runs}) > 1


def _against(objections: Sequence[Objection], metric: str) -> bool:
    return any(difference.per_token(metric) or not objection.tokens_only for objection in objections)


def _confounded(runs: Sequence[Facts], factors: Sequence[str]) -> list[Objection]:
    lost = effects.confounded(runs, factors)
    if len(lost) < 2:
        return []
    return [
        Objection(
            f"{', '.join(lost)} change together from run to run, so that what one of them did cannot be told from the "
            "others: vary one at a time, or cross them in a sweep."
        )
    ]
