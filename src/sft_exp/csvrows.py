"""Rows of separated values: csv and tsv."""

import csv
from collections.abc import Iterator
from pathlib import Path

from sft_exp import textfile
from sft_exp.errors import ConfigError
from sft_exp.rows import Place, Row, checked_row


def csv_rows(path: Path, name: str) -> Iterator[Row]:
    """Yield the rows below the header of comma-separated values."""
    return _separated(path, name, ",")


def tsv_rows(path: Path, name: str) -> Iterator[Row]:
    """Yield the rows below the header of tab-separated values."""
    return _separated(path, name, "\t")


def _separated(path: Path, name: str, delimiter: str) -> Iterator[Row]:
    """Yield rows; blank lines are not rows."""
    csv.field_size_limit(2**31 - 1)  # the default refuses fields above 128 KiB
    reader = csv.reader((line + "\n" for line in textfile.lines(path, name)), strict=True, delimiter=delimiter)
    header: list[str] = []
    number = 0
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            number += 1
            yield Row(Place(name, number), reason="wrong_type", detail=f"not csv: {error}")
            continue
        if header and any(fields):
            number += 1
            yield _csv_row(Place(name, number), header, fields)
        header = header or _header(fields, name)


def _header(fields: list[str], name: str) -> list[str]:
    """Names of columns; spreadsheets write columns without a name, and those may be several."""
    twice = next((field for field in fields if field and fields.count(field) > 1), None)
    if twice:
        raise ConfigError(f"{name} has two columns named '{twice}', of which one would be lost: rename or remove one.")
    return fields


def _csv_row(place: Place, header: list[str], fields: list[str]) -> Row:
    if len(fields) != len(header):
        return Row(place, reason="wrong_type", detail=f"{len(fields)} fields, but the header has {len(header)}")
    return checked_row(place, dict(zip(header, fields, strict=True)), "".join(fields))
