"""`metrics.jsonl`: rank 0 appends a row at each logged step, the parent reads what is new."""

import json
from pathlib import Path
from typing import Any, BinaryIO


def read_rows(path: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Whole lines of a metrics file from a byte offset on, and the offset after them."""
    if not path.exists():
        return [], offset
    with path.open("rb") as file:
        return rows_of(file, offset)


def rows_of(file: BinaryIO, offset: int) -> tuple[list[dict[str, Any]], int]:
    """As `read_rows`, of an open file."""
    rows: list[dict[str, Any]] = []
    file.seek(offset)
    for line in file:
        if not line.endswith(b"\n"):
            break
        rows.append(json.loads(line))
        offset += len(line)
    return rows, offset
