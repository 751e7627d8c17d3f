"""What is known of one row before anything looks at what it means.

A damaged row is a `Row` with a reason; a file that cannot be read at all is a ConfigError.
"""

import json
from dataclasses import dataclass
from typing import Any

CUT = "\udcff"
"""Stands for a character that the end of the file cuts in two; makes the row bad wherever it lands."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row stands: file and 1-based number, of the line in jsonl, of the row elsewhere."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its value, or the reason why it has none."""

    place: Place
    value: Any = None
    reason: str | None = None
    detail: str = ""


def checked_row(place: Place, value: Any, text: str) -> Row:
    """Make the row that `text` was decoded to, unless it holds lone surrogates, which no tokenizer can encode."""
    # They come from escapes such as \ud83d; without an escape there is nothing to look for.
    if "\\u" in text or CUT in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            return Row(place, reason="invalid_text", detail=f"half a character: {error.object[error.start]!r}")
    return Row(place, value)
