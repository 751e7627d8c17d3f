"""The comparison as one HTML file: no scripts, nothing loaded from elsewhere."""

import os
from collections.abc import Sequence
from pathlib import Path

from sft_exp.compare import answers, effects, plots, ranking, text
from sft_exp.compare.comparison import Comparison
from sft_exp.compare.facts import Facts

TEMPLATE = Path(__file__).parents[1] / "assets" / "compare.html.jinja"
BY_TOKENS = ("train/loss", "eval/loss", "train/grad_norm", "perf/tokens_per_second", "perf/peak_memory_gib")


def page(title: str, comparison: Comparison) -> str:
    """The page of one comparison."""
    from jinja2 import Environment
    from markupsafe import Markup

    runs, factors, columns = comparison.runs, comparison.factors, comparison.varying
    cells = list(effects.cells(runs, factors))
    groups = {id(run): cells.index(tuple(run.value(factor) for factor in factors)) for run in runs}
    probes = [metric for metric in columns if metric.startswith("probe/")]
    drawn = [(metric, _curves(runs, groups, metric)) for metric in [*BY_TOKENS, *probes]]
    template = Environment(autoescape=True).from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        title=title, comparison=comparison, table=text.table(comparison, columns),
        effects=text.effect_rows(comparison.effects) if comparison.effects else [],
        legend=[(plots.colour(at), ranking.setting(factors, cell)) for at, cell in enumerate(cells)],
        plots=[(metric, Markup(svg)) for metric, svg in drawn if svg],
        parallel=Markup(_parallel(runs, groups, factors, columns)),
        constant=[f"{name} {text.number(value)}" for name, value in comparison.constant.items()],
        answers=answers.questions(runs, factors), parent=str(common_parent(runs)),
    )  # fmt: skip


def common_parent(runs: Sequence[Facts]) -> Path:
    """The folder that all run folders lie in."""
    return Path(os.path.commonpath([run.run.path.parent for run in runs]))


def _curves(runs: Sequence[Facts], groups: dict[int, int], metric: str) -> str:
    lines = [plots.Line(groups[id(run)], run.name, by_tokens(run, metric)) for run in runs]
    return plots.curves(lines, "tokens seen")


def by_tokens(run: Facts, metric: str) -> list[tuple[float, float]]:
    """A metric over the tokens seen; rows of an evaluation take those of the last training row before."""
    points, seen = [], 0.0
    for row in run.rows:
        seen = float(row.get("train/tokens_seen", seen))
        if metric in row:
            points.append((seen, float(row[metric])))
    return points


def _parallel(runs: Sequence[Facts], groups: dict[int, int], factors: Sequence[str], columns: Sequence[str]) -> str:
    shown = [metric for metric in columns if not metric.startswith("train/grad")][:6]
    rows: list[tuple[int, Sequence[float | str | None]]] = [
        (groups[id(run)], [*(run.value(factor) for factor in factors), *(run.metrics.get(key) for key in shown)])
        for run in runs
    ]
    return plots.parallel([*factors, *map(text.short, shown)], rows)
