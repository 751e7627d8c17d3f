"""Rows of tables: csv and parquet."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sft_exp import textfile
from sft_exp.errors import ConfigError
from sft_exp.rows import Place, Row, checked_row


def csv_rows(path: Path, name: str) -> Iterator[Row]:
    """Yield the rows below the header; blank lines are not rows."""
    csv.field_size_limit(2**31 - 1)  # the default refuses fields above 128 KiB
    reader = csv.reader((line + "\n" for line in textfile.lines(path, name)), strict=True)
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
        header = header or fields


def _csv_row(place: Place, header: list[str], fields: list[str]) -> Row:
    if len(fields) != len(header):
        return Row(place, reason="wrong_type", detail=f"{len(fields)} fields, but the header has {len(header)}")
    return checked_row(place, dict(zip(header, fields, strict=True)), "".join(fields))


def parquet_rows(path: Path, name: str) -> Iterator[Row]:
    """Yield the rows of a parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=256):
            for at in range(batch.num_rows):
                number += 1
                try:
                    yield Row(Place(name, number), without_nulls(batch.slice(at, 1).to_pylist()[0]))
                except UnicodeDecodeError as error:
                    yield Row(Place(name, number), reason="invalid_text", detail=str(error))
    except pa.ArrowException as error:
        raise ConfigError(f"{name} is not a readable parquet file ({error}): write it again.") from error


def without_nulls(value: Any) -> Any:
    """The value without null fields: Arrow fills tool arguments that only other rows have with nulls."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
