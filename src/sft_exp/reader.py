"""Reads json, jsonl, csv and parquet files row by row, with the place of every row."""

from collections.abc import Callable, Iterator
from pathlib import Path

from sft_exp import textfile
from sft_exp.errors import ConfigError
from sft_exp.jsonrows import array_rows, line_rows
from sft_exp.rows import Row
from sft_exp.tables import csv_rows, parquet_rows


def read_rows(path: Path, name: str | None = None) -> Iterator[Row]:
    """Yield the rows of one file; `name` is what their places call it."""
    name = name or path.name
    try:
        yield from _reader(path, name)(path, name)
    except textfile.UNREADABLE as error:
        raise ConfigError(f"{name} cannot be read ({error}): copy or download it again.") from error


def _reader(path: Path, name: str) -> Callable[[Path, str], Iterator[Row]]:
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    # Files called .json hold an array or, as often, one object per line.
    if suffix == ".json" and textfile.first_character(path, name) == "[":
        return array_rows
    readers: dict[str, Callable[[Path, str], Iterator[Row]]] = {".csv": csv_rows, ".parquet": parquet_rows}
    return readers.get(suffix, line_rows)
