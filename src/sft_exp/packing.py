"""TRL's packing of rows into sequences of one length, with a record of which rows stand in each."""

import numpy as np
import pyarrow as pa
from datasets import Dataset
from trl.data_utils import _pack_bfd, pack_dataset

OVERFLOW = {"bfd": "truncate", "bfd_split": "split"}
"""Strategies that keep conversations apart -> what they do with a longer one."""


def pack(rows: Dataset, length: int, strategy: str, num_proc: int | None = None) -> Dataset:
    """Columns input_ids, labels and seq_lengths as `trl.pack_dataset` makes them.

    Where the rows have an integer column `index`, so have the packs: a list, in the order of seq_lengths. The
    strategy `wrapped` cuts rows anywhere and drops it.
    """
    if "index" not in rows.column_names or strategy not in OVERFLOW:
        return pack_dataset(rows.select_columns(["input_ids", "labels"]), length, strategy, {"num_proc": num_proc})
    packed: Dataset = rows.with_format("arrow").map(
        _pack,
        batched=True,
        num_proc=num_proc,
        desc="Packing",
        fn_kwargs={"length": length, "overflow": OVERFLOW[strategy]},
    )
    return packed.with_format(None)


def _pack(rows: pa.Table, length: int, overflow: str) -> pa.Table:
    """Pack one batch. TRL's function takes columns of one value per token only, so `index` becomes one and back."""
    ids, labels = (rows[name].combine_chunks() for name in ("input_ids", "labels"))
    per_row = ids.value_lengths().to_numpy()
    offsets = np.concatenate([[0], np.cumsum(per_row)]).astype(np.int32)
    columns = {
        "input_ids": ids.flatten(),
        "labels": labels.flatten(),
        "index": rows["index"].to_numpy().repeat(per_row),
    }
    lists = {name: pa.ListArray.from_arrays(offsets, values) for name, values in columns.items()}
    packed = _pack_bfd(pa.table(lists), length, overflow)
    lengths = packed["seq_lengths"].combine_chunks()
    starts = np.cumsum(lengths.values.to_numpy()) - lengths.values.to_numpy()
    index = pa.ListArray.from_arrays(lengths.offsets, packed["index"].combine_chunks().values.take(pa.array(starts)))
    return packed.set_column(packed.column_names.index("index"), "index", index)
