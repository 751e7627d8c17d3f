"""The comparison for a terminal and as CSV."""

import csv
import io
import statistics
from collections.abc import Iterator, Sequence

from sft_exp.compare import effects, ranking
from sft_exp.compare.difference import Difference
from sft_exp.compare.effects import Effect
from sft_exp.compare.facts import SEED, Facts

RED, BOLD, PLAIN = "\033[31m", "\033[1m", "\033[0m"
COLUMNS = ("eval/loss", "train/loss", "train/grad_norm", "perf/tokens_per_second", "perf/peak_memory_gib")
"""Metrics of the table, beside those of probes and task metrics."""
MORE = ("probe/", "eval/", "test/")
NOT_COLUMNS = ("seconds", "entropy", "share_of_run")


def metrics(runs: Sequence[Facts]) -> list[str]:
    """Metrics worth comparing, in the order of the table."""
    logged = dict.fromkeys(key for run in runs for key in run.metrics)
    more = [key for key in logged if key.startswith(MORE) and not key.endswith(NOT_COLUMNS)]
    return [key for key in dict.fromkeys([*COLUMNS, *more]) if key in logged]


def differing(found: Sequence[Difference], colour: bool) -> Iterator[str]:
    """One line for each difference; those that are not the question are marked."""
    for one in found:
        mark = {"question": "asked", "follows": "follows", "beyond": "BEYOND"}[one.kind]
        line = f"  {mark:<8}{one.key:<28}{one.told}"
        yield f"{RED}{line}{PLAIN}" if one.kind == "beyond" and colour else line


def table(runs: Sequence[Facts], factors: Sequence[str], columns: Sequence[str]) -> list[list[str]]:
    """Header and one row for each setting: its variables, number of runs, mean and deviation of each metric."""
    rows = [[*factors, "runs", *(short(column) for column in columns)]]
    for cell, members in effects.cells(runs, factors).items():
        rows.append([*cell, str(len(members)), *(_mean(effects.values(members, column)) for column in columns)])
    return rows


def short(metric: str) -> str:
    """Column title: `perf/tokens_per_second` -> `tokens/s`."""
    names = {"perf/tokens_per_second": "tokens/s", "perf/peak_memory_gib": "GiB", "train/grad_norm": "grad_norm"}
    return names.get(metric, metric.replace("_", " "))


def number(value: float) -> str:
    """Four digits, and thousands with a comma."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _mean(sample: Sequence[float]) -> str:
    if not sample:
        return "-"
    mean = number(statistics.fmean(sample))
    return mean if len(sample) == 1 else f"{mean} ± {statistics.stdev(sample):.2g}"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table, columns as wide as they must be."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def effect_rows(found: Sequence[Effect]) -> list[list[str]]:
    """Header and one row for each variable, level and metric."""
    rows = [["variable", "change", "metric", "effect", "95 % margin", "verdict"]]
    for one in found:
        verdict = {None: "noise unknown", False: "within noise", True: "moved"}[one.beyond_noise]
        margin = "-" if one.margin is None else f"± {one.margin:.2g}"
        change = f"{one.reference} -> {one.level}"
        rows.append([one.factor, change, short(one.metric), f"{one.difference:+.3g}", margin, verdict])
    return rows


def as_csv(runs: Sequence[Facts], factors: Sequence[str], columns: Sequence[str]) -> str:
    """One line for each run."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["run", "state", *factors, SEED, "tokens_seen", *columns, "behaviour"])
    for run in runs:
        values = [run.metrics.get(column, "") for column in columns]
        factor_values = [run.value(factor) for factor in factors]
        verdict = run.behaviour.get("verdict", "")
        writer.writerow(
            [str(run.run.path), run.state, *factor_values, run.value(SEED), run.tokens_seen, *values, verdict]
        )
    return out.getvalue()


def order(found: Sequence[ranking.Place], factors: Sequence[str], metric: str) -> Iterator[str]:
    """The ranking, best first."""
    for at, place in enumerate(found, start=1):
        spread = f" ± {place.deviation:.2g}" if place.deviation is not None else ""
        yield f"  {at}. {ranking.setting(factors, place.cell)}: {metric} {number(place.mean)}{spread}"
