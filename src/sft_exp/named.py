"""Run and sweep folders by their name, below `outputs`."""

from pathlib import Path

from sft_exp.rundir import RunDir


def folders(text: str, outputs: Path) -> list[Path]:
    """Those of exactly this name, else those that have it after their time; oldest first."""
    found = sorted(path for depth in ("*/*", "*/*-sweep/*") for path in outputs.glob(depth) if path.is_dir())
    return [path for path in found if path.name == text] or [path for path in found if RunDir(path).name == text]
