"""Rows and the data files that hold them: what `dataset.path` names, and what is known of one row.

A damaged row is a `Row` with a reason; a file that cannot be read at all is a ConfigError.
Nothing here looks at what a row means: `normalize` does.
"""

import glob
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sft_exp.errors import ConfigError

ASSETS = Path(__file__).parent / "assets"
SUFFIXES = (".json", ".jsonl", ".csv", ".parquet", ".json.gz", ".jsonl.gz")
CUT = "\udcff"
"""Stands for a character that the end of the file cuts in two; makes the row bad wherever it lands."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row stands: file and 1-based number, of the line in jsonl, of the row elsewhere."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its value, or the reason why it has none."""

    place: Place
    value: Any = None
    reason: str | None = None
    detail: str = ""


def checked_row(place: Place, value: Any, text: str) -> Row:
    """Make the row that `text` was decoded to, unless it holds lone surrogates, which no tokenizer can encode."""
    # They come from escapes such as \ud83d; without an escape there is nothing to look for.
    if "\\u" in text or CUT in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            return Row(place, reason="invalid_text", detail=f"half a character: {error.object[error.start]!r}")
    return Row(place, value)


def find_files(pattern: str) -> list[Path]:
    """List the data files that `dataset.path` names, sorted."""
    if pattern.startswith("sample:"):
        return [_sample(pattern)]
    path = Path(pattern).expanduser()
    if path.is_file() and not _readable(path):
        raise ConfigError(f"dataset.path={pattern} is not one of {' '.join(SUFFIXES)}: convert or rename it.")
    found = sorted(file for file in _candidates(path) if file.is_file() and _readable(file))
    if not found:
        what = "holds no data file" if path.is_dir() else "does not exist"
        raise ConfigError(f"dataset.path={pattern} {what}: give a file, a folder or a glob ({' '.join(SUFFIXES)}).")
    return found


def _candidates(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        return [file for file in path.rglob("*") if not any(p.startswith(".") for p in file.relative_to(path).parts)]
    return [Path(match) for match in glob.glob(str(path), recursive=True)]  # noqa: PTH207 - Path.glob refuses absolute patterns


def _sample(pattern: str) -> Path:
    name = pattern.removeprefix("sample:")
    shipped = sorted(file.name for file in ASSETS.glob("*") if _readable(file))
    if name not in shipped:
        raise ConfigError(
            f"dataset.path={pattern} is not shipped: use {' or '.join(f'sample:{other}' for other in shipped)}."
        )
    return ASSETS / name


def _readable(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES)
