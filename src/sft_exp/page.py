"""The data report as one HTML file: no scripts, nothing loaded from elsewhere, the same size for any number of rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sft_exp import data_report

TEMPLATE = Path(__file__).parent / "assets" / "data_report.html.jinja"


def page(data: Mapping[str, Any], problems: Sequence[str]) -> str:
    """The page for `data_report.json` and the sentences that refuse it, if any."""
    from jinja2 import Environment

    template = Environment(autoescape=True, trim_blocks=False).from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        data=data,
        problems=problems,
        lines=data_report.lines(data),
        reasons=data_report.reasons(data),
        highest=max((count for _, count in data["histogram"]), default=1) or 1,
        bars=_bars(data),
    )


def _bars(data: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, float]]]]:
    """Titles with names and shares between 0 and 1."""
    kept = max(data["kept"], 1)
    batches = data.get("batches") or {}
    space = {"padded batch": "padded", "packed rows": "packed"}
    turns = sorted(data["turns"].items(), key=lambda pair: int(pair[0]))[:12]
    return [
        ("Tokens", _tokens(data)),
        ("Formats", [(name, count / kept) for name, count in data["formats"].items()]),
        ("Languages (of a sample)", list(data["languages"].items())[:12]),
        ("Answers per conversation", [(number, count / kept) for number, count in turns]),
        ("Empty places", [(name, batches[key]) for name, key in space.items() if batches]),
    ]


def _tokens(data: Mapping[str, Any]) -> list[tuple[str, float]]:
    total = data["tokens"] + data["lost_tokens"] + data["dropped_tokens"]
    if not total:
        return []
    masked = data["tokens"] - data["trained_tokens"]
    parts = [("trained", data["trained_tokens"]), ("only read", masked), ("cut off", data["lost_tokens"])]
    return [(name, count / total) for name, count in [*parts, ("in dropped rows", data["dropped_tokens"])]]
