"""Plots as SVG, drawn here so that a report is one file that needs no script and no network."""

import dataclasses
import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 260, 64, 30, 8
"""Pixels: the whole plot, and the margins for labels."""
AXIS_STEP = 140
"""Pixels between two axes of parallel coordinates: room for their titles."""
COLOURS = ("#4a7fb5", "#c8553d", "#4f9d69", "#8e5ea2", "#c58f1d", "#3c9aa6", "#7a6a5d", "#d46a92", "#5b6bbf", "#8a9a2b")


@dataclasses.dataclass(frozen=True)
class Line:
    """One curve; `group` decides its colour."""

    group: int
    title: str
    points: list[tuple[float, float]]


def colour(group: int) -> str:
    """Colour of a group; they repeat after ten."""
    return COLOURS[group % len(COLOURS)]


def curves(lines: Sequence[Line], x_title: str) -> str:
    """Curves over a common x axis; empty text if there is nothing to draw."""
    drawn = [dataclasses.replace(line, points=[p for p in line.points if all(map(math.isfinite, p))]) for line in lines]
    points = [point for line in drawn for point in line.points]
    if not points:
        return ""
    x, y = _scale([p[0] for p in points], LEFT, WIDTH - 8), _scale([p[1] for p in points], HEIGHT - BOTTOM, TOP)
    body = [_axes(x, y, x_title)]
    for line in drawn:
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line.points)
        dots = "".join(
            f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="2.5" fill="{colour(line.group)}"/>' for a, b in line.points
        )
        body.append(
            f'<g><title>{escape(line.title)}</title><polyline points="{path}" fill="none" '
            f'stroke="{colour(line.group)}" stroke-width="1.5"/>{dots if len(line.points) <= 12 else ""}</g>'
        )
    return _svg(body)


def parallel(axes: Sequence[str], rows: Sequence[tuple[int, Sequence[float | str | None]]]) -> str:
    """Parallel coordinates: one upright axis for each variable and metric, one line for each run that has them all."""
    whole = [(group, values) for group, values in rows if None not in values]
    if len(axes) < 2 or not whole:
        return ""
    at = [60 + AXIS_STEP * number for number in range(len(axes))]
    columns = [_column([values[number] for _, values in whole]) for number in range(len(axes))]
    body, labels = [], []
    for x, title, column in zip(at, axes, columns, strict=True):
        body.append(f'<line x1="{x:.0f}" x2="{x:.0f}" y1="24" y2="{HEIGHT - BOTTOM}" class="axis"/>')
        body.append(f'<text x="{x:.0f}" y="14" text-anchor="middle">{escape(title)}</text>')
        labels += [
            f'<text x="{x + 4:.0f}" y="{_height(share) + 4:.1f}" class="label">{escape(label)}</text>'
            for label, share in column.labels
        ]
    for number, (group, _) in enumerate(whole):
        path = " ".join(f"{x:.1f},{_height(column.shares[number]):.1f}" for x, column in zip(at, columns, strict=True))
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour(group)}" stroke-width="1.5"/>')
    return _svg([*body, *labels], at[-1] + 100)


@dataclasses.dataclass(frozen=True)
class _Column:
    shares: list[float]
    labels: list[tuple[str, float]]


def _column(values: Sequence[float | str | None]) -> _Column:
    """Places of values between 0 and 1: numbers by size, words in the order they come."""
    if all(isinstance(value, int | float) for value in values):
        numbers = [float(value) for value in values if value is not None]
        low, high = min(numbers), max(numbers)
        shares = [(value - low) / (high - low) if high > low else 0.5 for value in numbers]
        return _Column(shares, [(f"{low:.4g}", 0.0), (f"{high:.4g}", 1.0)] if high > low else [(f"{low:.4g}", 0.5)])
    words = list(dict.fromkeys(map(str, values)))
    places = {word: (number + 0.5) / len(words) for number, word in enumerate(words)}
    return _Column([places[str(value)] for value in values], list(places.items()))


def _height(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - 24)


@dataclasses.dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def _scale(values: Sequence[float], start: float, end: float) -> _Scale:
    low, high = min(values), max(values)
    margin = (high - low) * 0.03 or abs(high) * 0.05 or 1.0
    return _Scale(low - margin, high + margin, start, end)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two values, about `count` of them."""
    raw = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _axes(x: _Scale, y: _Scale, x_title: str) -> str:
    parts = []
    for value in ticks(y.low, y.high):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 8}" y1="{y(value):.1f}" y2="{y(value):.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{_label(value)}</text>')
    for value in ticks(x.low, x.high):
        if value >= 0:
            parts.append(f'<text x="{x(value):.1f}" y="{HEIGHT - 14}" text-anchor="middle">{_label(value)}</text>')
    parts.append(f'<text x="{WIDTH - 8}" y="{HEIGHT - 1}" text-anchor="end" class="soft">{escape(x_title)}</text>')
    return "".join(parts)


def _label(value: float) -> str:
    return f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{value:.6g}"


def _svg(body: Sequence[str], width: int = WIDTH) -> str:
    return f'<svg viewBox="0 0 {width} {HEIGHT}" style="max-width: {width}px" role="img">{"".join(body)}</svg>'
