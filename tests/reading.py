"""Files made of text, read back row by row."""

from pathlib import Path
from typing import Any

from sft_exp.reader import read_rows
from sft_exp.rows import Row


def read(path: Path, content: bytes | str) -> list[Row]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read_rows(path))


def values(found: list[Row]) -> list[Any]:
    assert all(row.reason is None for row in found), found
    return [row.value for row in found]
