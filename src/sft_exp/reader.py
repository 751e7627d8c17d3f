"""Reads data files of every known kind row by row, with the place of every row."""

from collections.abc import Callable, Iterator
from pathlib import Path

from sft_exp import textfile
from sft_exp.csvrows import csv_rows, tsv_rows
from sft_exp.errors import ConfigError
from sft_exp.jsonrows import array_rows, line_rows
from sft_exp.rows import Row
from sft_exp.tables import arrow_rows, parquet_rows

Reader = Callable[[Path, str], Iterator[Row]]
_TABLES: dict[str, Reader] = {".csv": csv_rows, ".tsv": tsv_rows, ".parquet": parquet_rows, ".arrow": arrow_rows}
_BINARY = (".parquet", ".arrow")


def read_rows(path: Path, name: str | None = None) -> Iterator[Row]:
    """Yield the rows of one file; `name` is what their places call it."""
    name = name or path.name
    try:
        yield from _reader(path, name)(path, name)
    except textfile.UNREADABLE as error:
        raise ConfigError(f"{name} cannot be read ({error}): copy or download it again.") from error


def encoding(path: Path) -> str | None:
    """Name of the text encoding; None if the file is not text."""
    return None if path.suffix.lower() in _BINARY else textfile.encoding(path)


def _reader(path: Path, name: str) -> Reader:
    suffix = Path(path.name.lower().removesuffix(".gz").removesuffix(".zst")).suffix
    # Files called .json hold an array or, as often, one object per line.
    if suffix == ".json" and textfile.first_character(path, name) == "[":
        return array_rows
    return _TABLES.get(suffix, line_rows)
