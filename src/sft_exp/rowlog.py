"""Which rows were in which step, and the loss of each: `rows/rank<N>.bin` of a run folder, one file per rank.

A file is nothing but records of 16 bytes, little-endian, in the order of training:

    step    uint32   as in metrics.jsonl: the first is 1
    row     uint32   position in the prepared `train/data.arrow`, from 0
    tokens  uint32   trained tokens of the row
    loss    float32  their mean cross-entropy in nats before the step; NaN and infinities as they came

A row stands once for each time it was trained. A kill can leave half a record at the end, which no reader counts.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Records = npt.NDArray[np.void]

FIELDS = [("step", "<u4"), ("row", "<u4"), ("tokens", "<u4"), ("loss", "<f4")]
SIZE = 16
"""Bytes of one record."""
NEIGHBOURS = 16
"""Records that a median should have."""


def file_of(folder: Path, rank: int) -> Path:
    """The file of one rank."""
    return folder / f"rank{rank}.bin"


def records(**columns: Any) -> "Records":
    """Records from columns of equal length, named as in FIELDS."""
    import numpy as np

    made = np.empty(len(columns["step"]), dtype=FIELDS)
    for name, values in columns.items():
        made[name] = values
    return made


def append(file: Path, rows: "Records") -> None:
    """Add records in one write."""
    with file.open("ab", buffering=0) as stream:
        stream.write(rows.tobytes())


def begin(folder: Path, *, rank: int, ranks: int, step: int) -> Path:
    """Make this rank's file ready to go on after `step`: what a killed run wrote beyond it is repeated."""
    folder.mkdir(exist_ok=True)
    files = [file_of(folder, rank)]
    if rank == 0:  # a resumed run may have fewer ranks than the one before
        files += [file for file in folder.glob("rank*.bin") if int(file.stem.removeprefix("rank")) >= ranks]
    for file in files:
        _cut(file, step)
    return files[0]


def read(folder: Path) -> "Records":
    """All records of all ranks, by step, then rank, then order; none if nothing was recorded."""
    import numpy as np

    files = sorted(folder.glob("rank*.bin"), key=lambda file: int(file.stem.removeprefix("rank")))
    parts = [_load(file) for file in files]
    rows = np.concatenate(parts) if parts else np.empty(0, dtype=FIELDS)
    return rows[np.argsort(rows["step"], kind="stable")]


def typical_loss(rows: "Records") -> "npt.NDArray[np.float32]":
    """For each record, in the order of `read`, the median loss of those trained at the same time.

    These are the rows of its step, or of neighbouring steps where steps are small; NaN where none has a loss.
    """
    import numpy as np

    _, begins, steps = np.unique(rows["step"], return_index=True, return_inverse=True)
    block = (begins // NEIGHBOURS)[steps]
    typical = np.full(len(rows), np.nan, dtype=np.float32)
    for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(block)) + 1):
        losses = rows["loss"][part]
        known = losses[np.isfinite(losses)]
        typical[part] = np.median(known) if len(known) else np.nan
    return typical


def _load(file: Path) -> "Records":
    import numpy as np

    return np.fromfile(file, dtype=FIELDS, count=file.stat().st_size // SIZE)


def _cut(file: Path, step: int) -> None:
    """Leave the records of steps up to `step`; they stand in the order of steps."""
    if file.exists():
        with file.open("r+b") as stream:
            stream.truncate(int((_load(file)["step"] <= step).sum()) * SIZE)
