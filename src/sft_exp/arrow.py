"""The arrow files of prepared rows: columns input_ids, labels and row (the place, such as `chats.jsonl:17`)."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sft_exp.labels import IGNORED, Encoded
from sft_exp.rows import Place

_SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32())), ("labels", pa.list_(pa.int32())), ("row", pa.string())])


@contextmanager
def writer(file: Path) -> Iterator[pa.RecordBatchStreamWriter]:
    """Open a file for batches."""
    file.parent.mkdir(exist_ok=True)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, _SCHEMA) as stream:
        yield stream


def batch(rows: Sequence[tuple[Place, Encoded]]) -> pa.RecordBatch:
    """Make one batch of rows."""
    starts = np.cumsum([0, *(len(encoded.input_ids) for _, encoded in rows)], dtype=np.int32)
    ids = np.fromiter(chain.from_iterable(encoded.input_ids for _, encoded in rows), np.int32, int(starts[-1]))
    labels = np.full_like(ids, IGNORED)
    for start, (_, encoded) in zip(starts.tolist(), rows, strict=False):
        end = start + len(encoded.input_ids)
        for first, after in encoded.trained:
            trained = slice(min(start + first, end), min(start + after, end))
            labels[trained] = ids[trained]
    columns = [
        pa.ListArray.from_arrays(starts, ids),
        pa.ListArray.from_arrays(starts, labels),
        pa.array([str(place) for place, _ in rows], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def distribute(source: Path, targets: Sequence[Path], side: npt.NDArray[np.int8]) -> None:
    """Copy each row to the target that `side` names, shape (rows,); a negative side leaves the row out."""
    at = 0
    with ExitStack() as stack:
        # Read, not mapped: pages of a mapped file count as the memory of the process, and the file may be large.
        opened = stack.enter_context(pa.OSFile(str(source), "rb"))
        streams = [stack.enter_context(writer(target)) for target in targets]
        for rows in pa.ipc.open_stream(opened):
            sides = side[at : at + rows.num_rows]
            for number, stream in enumerate(streams):
                stream.write_batch(rows.filter(pa.array(sides == number)))
            at += rows.num_rows
