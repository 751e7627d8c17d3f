"""The comparison for a terminal and as CSV."""

import csv
import io
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import wrap

from sft_exp.compare import effects, ranking
from sft_exp.compare.comparison import Comparison
from sft_exp.compare.difference import Difference
from sft_exp.compare.effects import Effect
from sft_exp.compare.facts import SEED, Facts

RED, BOLD, PLAIN = "\033[31m", "\033[1m", "\033[0m"


def lines(comparison: Comparison, colour: bool) -> Iterator[str]:
    """The whole comparison; the page and the CSV have the metrics that a terminal has no room for."""
    one, count = comparison, len(comparison.runs)
    yield f"{count} runs; what differs:" if one.differences else f"{count} runs that differ in nothing"
    yield from differing(one.differences, colour)
    yield ""
    columns = list(dict.fromkeys([one.metric, *one.varying]))  # what was asked for comes first
    yield from aligned(table(one, columns[: max(3, 9 - len(one.factors))]))
    if one.effects:
        yield "\nwhat each variable moved (all others equal):"
        yield from effect_lines(one.effects)
    if one.objections:
        yield f"\n{one.caveat}"
        yield from (f"  {objection.text}" for objection in one.objections)
    if one.objections and not one.ranked:
        yield "  --anyway ranks them all the same."
    if one.ranked:
        yield f"\n{one.verdict}"
        yield from order(one)
    yield ""


def differing(found: Sequence[Difference], colour: bool) -> Iterator[str]:
    """One line for each difference; those that are not the question are marked."""
    for one in found:
        mark = {"question": "asked", "follows": "follows", "beyond": "BEYOND"}[one.kind]
        line = f"  {mark:<8}{one.key:<28}{one.told}"
        yield f"{RED}{line}{PLAIN}" if one.kind == "beyond" and colour else line


def table(comparison: Comparison, columns: Sequence[str]) -> list[list[str]]:
    """Header and one row for each setting: its variables, number of runs, mean and deviation of each metric."""
    judged = any(run.judged for run in comparison.runs)
    rows = [[*comparison.factors, "runs", *(short(column) for column in columns), *(["behaviour"] if judged else ())]]
    for cell, members in effects.cells(comparison.runs, comparison.factors).items():
        means = [_mean(effects.values(members, column)) for column in columns]
        named = [value or "none" for value in cell]
        rows.append([*named, str(len(members)), *means, *([_judged(members)] if judged else ())])
    return rows


def _judged(runs: Sequence[Facts]) -> str:
    """How often each verdict was given: `2 healthy; 1 never stops, repeats itself`."""
    return "; ".join(
        f"{times} {verdict or 'unknown'}" for verdict, times in Counter(run.judged for run in runs).items()
    )


def short(metric: str) -> str:
    """Column title: `perf/tokens_per_second` -> `tokens/s`."""
    names = {"perf/tokens_per_second": "tokens/s", "perf/peak_memory_gib": "GiB", "train/grad_norm": "grad_norm"}
    return names.get(metric, metric)


def number(value: float) -> str:
    """Four digits, and thousands with a comma."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def spread(value: float, sign: str = "") -> str:
    """A spread with two digits, or a difference (`sign` is `+`) with three; whole from 100 on."""
    return f"{value:{sign},.0f}" if abs(value) >= 100 else f"{value:{sign}.{3 if sign else 2}g}"


def _mean(sample: Sequence[float]) -> str:
    if not sample:
        return "-"
    mean = number(statistics.fmean(sample))
    return mean if len(sample) == 1 else f"{mean} ± {spread(statistics.stdev(sample))}"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table, columns as wide as they must be."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def effect_lines(found: Sequence[Effect]) -> Iterator[str]:
    """The effects beyond noise as a table, the others by name only."""
    shown = [one for one in found if one.beyond_noise is not False]
    yield from aligned(effect_rows(shown)) if shown else ["  nothing by more than the noise of the seeds"]
    quiet: dict[str, list[str]] = {}
    for one in found:
        if one.beyond_noise is False:
            quiet.setdefault(f"{one.factor} {_change(one)}", []).append(short(one.metric))
    for change, names in quiet.items():
        yield from wrap(
            f"within noise, {change}: {', '.join(names)}", 118, initial_indent="  ", subsequent_indent="    "
        )
    if known := sum(one.margin is not None for one in found):
        yield f"  {known} effects were looked at: about {known * 0.05:.0f} would be beyond noise by chance alone."


def effect_rows(found: Sequence[Effect]) -> list[list[str]]:
    """Header and one row for each variable, level and metric; of each level what has moved clearest comes first."""
    rows = [["variable", "change", "metric", "effect", "95 % margin", "verdict"]]
    levels = list(dict.fromkeys((one.factor, one.level) for one in found))
    for one in sorted(found, key=lambda one: (levels.index((one.factor, one.level)), -_clearness(one))):
        verdict = {None: "noise unknown", False: "within noise", True: "moved"}[one.beyond_noise]
        margin = "-" if one.margin is None else f"± {spread(one.margin)}"
        rows.append([one.factor, _change(one), short(one.metric), spread(one.difference, "+"), margin, verdict])
    return rows


def _change(effect: Effect) -> str:
    return f"{effect.reference} -> {effect.level}"


def _clearness(effect: Effect) -> float:
    """An effect as a multiple of its margin."""
    if effect.margin is None or not effect.difference:
        return 0.0
    return abs(effect.difference) / effect.margin if effect.margin else math.inf


def as_csv(comparison: Comparison) -> str:
    """One line for each run."""
    factors, columns = comparison.factors, comparison.metrics
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["run", "state", *factors, SEED, "tokens_seen", *columns, "behaviour"])
    for run in comparison.runs:
        values = [run.metrics.get(column, "") for column in columns]
        factor_values = [run.value(factor) for factor in factors]
        verdict = run.behaviour.get("verdict", "")
        writer.writerow(
            [str(run.run.path), run.state, *factor_values, run.value(SEED), run.tokens_seen, *values, verdict]
        )
    return out.getvalue()


def order(comparison: Comparison) -> Iterator[str]:
    """The ranking, best first."""
    for at, place in enumerate(comparison.ranked, start=1):
        around = f" ± {spread(place.deviation)}" if place.deviation is not None else ""
        named = ranking.setting(comparison.factors, place.cell)
        yield f"  {at}. {named}: {comparison.metric} {number(place.mean)}{around}"
