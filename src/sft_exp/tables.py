"""Rows of tables: csv, parquet and arrow."""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sft_exp import textfile
from sft_exp.errors import ConfigError
from sft_exp.rows import Place, Row, checked_row

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 256  # rows
_MAGIC = b"ARROW1"
"""First bytes of Arrow's file format; its stream format has none."""
_END = b"\xff" * 4 + bytes(4)
"""Last bytes of Arrow's stream format: a message of length 0."""


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
        header = header or fields


def _csv_row(place: Place, header: list[str], fields: list[str]) -> Row:
    if len(fields) != len(header):
        return Row(place, reason="wrong_type", detail=f"{len(fields)} fields, but the header has {len(header)}")
    return checked_row(place, dict(zip(header, fields, strict=True)), "".join(fields))


def parquet_rows(path: Path, name: str) -> Iterator[Row]:
    """Yield the rows of a parquet file."""
    import pyarrow.parquet as pq

    def batches() -> Iterator["pa.RecordBatch"]:
        # With pre_buffer a whole row group, often the whole file, would be in memory.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            yield from file.iter_batches(batch_size=_BATCH)

    return _batch_rows(batches(), name, "parquet")


def arrow_rows(path: Path, name: str) -> Iterator[Row]:
    """Yield the rows of an Arrow file, in the stream format of `datasets` or in the file format."""
    import pyarrow as pa

    def batches() -> Iterator["pa.RecordBatch"]:
        with path.open("rb") as raw:
            in_file_format = raw.read(len(_MAGIC)) == _MAGIC
        with pa.OSFile(str(path)) as file:
            if in_file_format:
                reader = pa.ipc.open_file(file)
                yield from (reader.get_batch(at) for at in range(reader.num_record_batches))
                return
            yield from pa.ipc.open_stream(file)
            # What a killed writer leaves, or damage that looks like an end, is shorter without an error.
            if file.tell() != file.size() or file.read_at(len(_END), file.size() - len(_END)) != _END:
                raise pa.ArrowInvalid("it does not stop where its stream ends")

    return _batch_rows(batches(), name, "arrow")


def _batch_rows(batches: Iterable["pa.RecordBatch"], name: str, kind: str) -> Iterator[Row]:
    import pyarrow as pa

    number = 0
    try:
        for whole in batches:
            for start in range(0, whole.num_rows, _BATCH):
                for row in _checked(whole.slice(start, _BATCH)):
                    number += 1
                    place = Place(name, number)
                    yield Row(place, reason="invalid_text", detail=row) if isinstance(row, str) else Row(place, row)
    except (pa.ArrowException, ValueError, OverflowError) as error:  # names of columns, times: Python refuses them
        cause = str(error).splitlines()[0]
        raise ConfigError(f"{name} is not a readable {kind} file ({cause}): write it again.") from error


def _checked(batch: "pa.RecordBatch") -> Iterator[dict[str, Any] | str]:
    """Values of a batch's rows, or what is wrong with a row's text; damage of any other kind is an ArrowException."""
    import pyarrow as pa

    try:
        batch.validate(full=True)  # Arrow trusts lengths and offsets: reading wrong ones ends the process
        yield from map(without_nulls, batch.to_pylist())
    except pa.ArrowInvalid as error:
        if batch.num_rows != 1:
            for at in range(batch.num_rows):
                yield from _checked(batch.slice(at, 1))
        elif "UTF8" in str(error):
            yield str(error)
        else:
            raise


def without_nulls(value: Any) -> Any:
    """The value without null fields: Arrow fills tool arguments that only other rows have with nulls."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
