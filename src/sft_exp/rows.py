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


def broken_text(text: str) -> str | None:
    """What is wrong with a file's text that no tokenizer can encode."""
    half = _half_character(text)
    if half and half != CUT and "\udc80" <= half <= "\udcff":
        return f"byte {ord(half) - 0xDC00:#04x} is not UTF-8; `iconv -f ITS_ENCODING -t UTF-8` converts a file"
    return f"half a character: {half!r}" if half else None


def _half_character(text: str) -> str | None:
    """The first lone surrogate."""
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return str(error.object[error.start])
    return None


def checked_row(place: Place, value: Any, text: str) -> Row:
    """Make the row that `text` was decoded to, unless it holds lone surrogates, which no tokenizer can encode."""
    if problem := broken_text(text):
        return Row(place, reason="invalid_text", detail=problem)
    # They come from escapes such as \ud83d; without an escape there is nothing to look for.
    if "\\u" in text and (half := _half_character(json.dumps(value, ensure_ascii=False))):
        return Row(place, reason="invalid_text", detail=f"half a character: {half!r}")
    return Row(place, value)
