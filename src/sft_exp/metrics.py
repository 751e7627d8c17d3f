"""`metrics.jsonl`: rank 0 appends a row at each logged step, the parent reads what is new."""

import json
from pathlib import Path
from typing import Any


def read_rows(path: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Whole lines of a metrics file from a byte offset on, and the offset after them."""
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows, offset
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                break
            rows.append(json.loads(line))
            offset += len(line)
    return rows, offset
