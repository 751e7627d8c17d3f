"""Rows of JSON: one per line, or the elements of one array."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sft_exp import textfile
from sft_exp.errors import ConfigError
from sft_exp.rows import CUT, Place, Row, broken_text, checked_row


def line_rows(path: Path, name: str) -> Iterator[Row]:
    """Yield one row per line that is not blank."""
    for number, line in enumerate(textfile.lines(path, name), 1):
        if text := line.strip():
            yield _decoded(Place(name, number), text)


def array_rows(path: Path, name: str) -> Iterator[Row]:
    """Yield the elements of one JSON array, each decoded as soon as it is complete."""
    pieces = textfile.pieces(path, name)
    text = ""
    while not text.strip():
        text += next(pieces)
    text = text.lstrip()[1:]
    for number in itertools.count(1):
        while not (text := text.lstrip(" \t\r\n,")) and (piece := next(pieces, "")):
            text = piece
        if text.startswith("]"):
            _nothing_more(Place(name, number), text[1:], pieces)
            return
        row, text = _element(Place(name, number), text, pieces)
        yield row


def _element(place: Place, text: str, pieces: Iterator[str]) -> tuple[Row, str]:
    """One array element and the text after it; damage ends the file, since nothing says where the next one begins."""
    while True:
        problem, incomplete = "the array is not closed", True
        try:
            value, end = _DECODER.raw_decode(text)
            if end < len(text):
                return checked_row(place, value, text[:end]), text[end:]
        except (RecursionError, ValueError) as error:
            problem, incomplete = _shown(error), _is_cut(error, text)
        more = ""
        # Half as much again at least: each try decodes from the start, which must not cost quadratic time.
        while incomplete and len(more) <= len(text) // 2 and (piece := next(pieces, "")):
            more += piece
        if not more:
            remedy = "mend the array or write it as jsonl, one row per line"
            raise ConfigError(f"{place} is not JSON ({problem}): {remedy}.")
        text += more


def _nothing_more(place: Place, text: str, pieces: Iterator[str]) -> None:
    """Refuse what follows the array, such as a second one: it would be lost without a word."""
    for piece in itertools.chain([text], pieces):
        if found := piece.strip():
            raise ConfigError(
                f"{place} ends the array and more follows ({found[:20]!r}): write one array, or one row per line."
            )


def _is_cut(error: Exception, text: str) -> bool:
    # A number, name or escape that the end of the buffer cuts is at most this long.
    return isinstance(error, json.JSONDecodeError) and ("Unterminated" in error.msg or error.pos >= len(text) - 16)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key '{next(name for name in names if names.count(name) > 1)}' stands twice")
    return fields


# NaN and Infinity are not JSON, but pandas writes NaN for a missing value: they are read as null.
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=lambda _: None)


def _decoded(place: Place, text: str) -> Row:
    try:
        return checked_row(place, _DECODER.decode(text), text)
    except (RecursionError, ValueError) as error:
        if CUT not in text and (problem := broken_text(text)):  # half of another encoding's character may be a quote
            return Row(place, reason="invalid_text", detail=problem)
        return Row(place, reason="invalid_json", detail=_shown(error))


def _shown(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error).split(";")[0]
