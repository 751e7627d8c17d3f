"""Rows of tables: parquet and arrow."""

import json
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sft_exp.errors import ConfigError
from sft_exp.rows import Place, Row

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 256  # rows
_MAGIC = b"ARROW1"
"""First bytes of Arrow's file format; its stream format has none."""
_PADDED_MAGIC = 8
"""Bytes before the first message of the file format."""
_AROUND_FOOTER = 12
"""Bytes of a parquet file besides data and footer: the magic word twice and the footer's length."""
_END = b"\xff" * 4 + bytes(4)
"""Last bytes of Arrow's stream format: a message of length 0."""


def parquet_rows(path: Path, name: str) -> Iterator[Row]:
    """Yield the rows of a parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def batches() -> Iterator["pa.RecordBatch"]:
        # With pre_buffer a whole row group, often the whole file, would be in memory.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            footer = file.metadata
            if footer.num_rows != sum(footer.row_group(at).num_rows for at in range(footer.num_row_groups)):
                raise pa.ArrowInvalid("its footer counts other rows than its parts do")
            if not footer.num_row_groups and path.stat().st_size > footer.serialized_size + _AROUND_FOOTER:
                raise pa.ArrowInvalid("it holds data, but its footer says that it has no rows")
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
                if reader.num_record_batches < _written_batches(path):
                    raise pa.ArrowInvalid("it holds more batches than its footer says")
                yield from (reader.get_batch(at) for at in range(reader.num_record_batches))
                return
            yield from pa.ipc.open_stream(file)
            # What a killed writer leaves, or damage that looks like an end, is shorter without an error.
            if file.tell() != file.size() or file.read_at(len(_END), file.size() - len(_END)) != _END:
                raise pa.ArrowInvalid("it does not stop where its stream ends")

    return _batch_rows(batches(), name, "arrow")


def _written_batches(path: Path) -> int:
    """Batches between the two magic words of Arrow's file format, which hold a stream; a damaged footer hides them."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as mapped:  # the batches themselves are not read
        mapped.seek(_PADDED_MAGIC)
        try:
            messages = list(map(attrgetter("type"), pa.ipc.MessageReader.open_stream(mapped)))
        except (pa.ArrowException, OSError):  # other writers may order the file otherwise: the footer counts then
            return 0
    return messages.count("record batch")


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
        decode = decoder(pa.struct(batch.schema)) or _same
        yield from (decode(without_nulls(row)) for row in batch.to_pylist())
    except pa.ArrowInvalid as error:
        if batch.num_rows != 1:
            for at in range(batch.num_rows):
                yield from _checked(batch.slice(at, 1))
        elif "UTF8" in str(error):
            yield str(error)
        else:
            raise


def decoder(kind: "pa.DataType") -> Callable[[Any], Any] | None:
    """What makes Python values of Arrow's, which hold JSON as text; None where nothing is to be done.

    `datasets` keeps objects of mixed shapes as JSON, such as tool calls and so whole messages.
    """
    import pyarrow as pa

    if kind == pa.json_():
        return _json
    if pa.types.is_struct(kind):
        fields = {field.name: make for field in kind.fields if (make := decoder(field.type))}
        if fields:
            return lambda value: value and {key: fields.get(key, _same)(item) for key, item in value.items()}
    elif (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and (make := decoder(kind.value_type)):
        return lambda value: value and [make(item) for item in value]
    return None


def _json(value: str | None) -> Any:
    try:
        return None if value is None else json.loads(value)
    except (ValueError, RecursionError):
        return value


def _same(value: Any) -> Any:
    return value


def without_nulls(value: Any) -> Any:
    """The value without null fields: Arrow fills tool arguments that only other rows have with nulls."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
