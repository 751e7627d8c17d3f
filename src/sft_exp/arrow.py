"""The arrow files of prepared rows: columns input_ids, labels and row (the place, such as `chats.jsonl:17`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from sft_exp.labels import Encoded
from sft_exp.rows import Place

_SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32())), ("labels", pa.list_(pa.int32())), ("row", pa.string())])


@contextmanager
def writer(file: Path) -> Iterator[pa.RecordBatchStreamWriter]:
    """Open a file for batches."""
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, _SCHEMA) as stream:
        yield stream


def batch(rows: list[tuple[Place, Encoded]]) -> pa.RecordBatch:
    """Make one batch of rows."""
    columns = {
        "input_ids": [encoded.input_ids for _, encoded in rows],
        "labels": [encoded.labels for _, encoded in rows],
        "row": [str(place) for place, _ in rows],
    }
    return pa.RecordBatch.from_pydict(columns, schema=_SCHEMA)


def copy_rows(source: Path, target: Path, wanted: list[bool]) -> None:
    """Copy the wanted rows to another file."""
    target.parent.mkdir()
    at = 0
    with pa.memory_map(str(source)) as mapped, writer(target) as stream:
        for rows in pa.ipc.open_stream(mapped):
            stream.write_batch(rows.filter(pa.array(wanted[at : at + rows.num_rows], pa.bool_())))
            at += rows.num_rows
