"""The tables of docs/memory.md are what the plan says now. UPDATE_GOLDEN=1 writes them."""

import os
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from composing import assembled, machine, options
from memory_points import Point, points
from sft_exp import memory
from sft_exp.memory import Verdict

FILE = Path(__file__).resolve().parents[1] / "docs" / "memory.md"
STAGES = ("0", "1", "2", "3", "2_offload", "3_offload")
PROFILES = ("v100", "4090x1", "4090x4")
MARK = {Verdict.fits: "**", Verdict.tight: "*", Verdict.too_large: ""}


def points_table() -> Iterator[str]:
    """Every point with its error, and median and worst of each source."""
    found = points()
    yield "| Source | Points | Median error | Worst error |"
    yield "|---|---|---|---|"
    for source in dict.fromkeys(point.source for point in found):
        yield summary(source, [point for point in found if point.source == source])
    yield summary("all but the Qwen README", [point for point in found if not point.source.startswith("Qwen")])
    yield ""
    yield "| Source | Run | Planned | Measured | Error |"
    yield "|---|---|---|---|---|"
    for point in found:
        sizes = f"{point.planned_gib:.2f} | {point.measured_gib:.2f} | {point.error:+.1%}"
        yield f"| {point.source} | {point.name} | {sizes} |"


def summary(source: str, chosen: list[Point]) -> str:
    """Row of one source."""
    errors = [abs(point.error) for point in chosen]
    return f"| {source} | {len(chosen)} | {statistics.median(errors):.1%} | {max(errors):.1%} |"


def fits_table() -> Iterator[str]:
    """One table for each profile: models and adapters down, stages across."""
    for profile in PROFILES:
        yield f"`hw={profile}`"
        yield ""
        yield f"| Model | Adapter | {' | '.join(f'`zero={stage}`' for stage in STAGES)} |"
        yield "|---|---" + "|---" * len(STAGES) + "|"
        for model in options("model"):
            if model != "tiny":
                for adapter in options("adapter"):
                    cells = " | ".join(cell(profile, model, adapter, stage) for stage in STAGES)
                    yield f"| `{model}` | `{adapter}` | {cells} |"
        yield ""


def cell(profile: str, model: str, adapter: str, stage: str) -> str:
    """GiB per GPU and micro batch of one combination."""
    experiment = assembled(
        f"model={model}", f"hw={profile}", f"adapter={adapter}", f"zero={stage}", "train.gradient_checkpointing=true",
        "model.attention=sdpa", on=machine("4090", 4),
    )  # fmt: skip
    planned = memory.plan(experiment)
    assert planned is not None
    mark = MARK[planned.verdict]
    return f"{mark}{planned.total_gib:.1f}{mark} ({experiment.train.micro_batch})"


@pytest.mark.parametrize(("name", "table"), [("points", points_table), ("fits", fits_table)])
def test_table_is_in_step(here: Path, name: str, table: Callable[[], Iterator[str]]) -> None:
    text = FILE.read_text(encoding="utf-8")
    block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
    wanted = block.sub(lambda match: match[1] + "\n" + "\n".join(table()).strip() + "\n\n" + match[2], text)
    if os.environ.get("UPDATE_GOLDEN"):
        FILE.write_text(wanted, encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == wanted, "renew it with UPDATE_GOLDEN=1"
