"""Reads json, jsonl, csv and parquet files row by row, with the place of every row.

A damaged row is a `Row` with a reason; a file that cannot be read at all is a ConfigError.
Nothing here looks at what a row means: `normalize` does.
"""

from __future__ import annotations

import codecs
import csv
import glob
import gzip
import itertools
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from sft_exp.errors import ConfigError

ASSETS = Path(__file__).parent / "assets"
SUFFIXES = (".json", ".jsonl", ".csv", ".parquet", ".json.gz", ".jsonl.gz")
_BOMS = {  # UTF-32 first: its mark begins like that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
UNREADABLE = (OSError, EOFError, zlib.error)
_CHUNK = 1 << 18
_CUT = "\udcff"  # stands for a character that the end of the file cuts in two; makes the row bad wherever it lands


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


def find_files(pattern: str) -> list[Path]:
    """Lists the data files that `dataset.path` names, sorted."""
    if pattern.startswith("sample:"):
        return [_sample(pattern)]
    path = Path(pattern).expanduser()
    if path.is_file():
        found = [path]
        if not _readable(path):
            raise ConfigError(f"dataset.path={pattern} is not one of {' '.join(SUFFIXES)}: convert or rename it")
    elif path.is_dir():
        below = (file for file in path.rglob("*") if not any(p.startswith(".") for p in file.relative_to(path).parts))
        found = sorted(file for file in below if file.is_file() and _readable(file))
    else:
        matches = map(Path, glob.glob(str(path), recursive=True))  # noqa: PTH207 - Path.glob refuses absolute patterns
        found = sorted(file for file in matches if file.is_file() and _readable(file))
    if not found:
        what = "holds no data file" if path.is_dir() else "does not exist"
        raise ConfigError(f"dataset.path={pattern} {what}: give a file, a folder or a glob of {' '.join(SUFFIXES)}")
    return found


def _sample(pattern: str) -> Path:
    name = pattern.removeprefix("sample:")
    shipped = sorted(file.name for file in ASSETS.glob("*") if _readable(file))
    if name not in shipped:
        raise ConfigError(f"dataset.path={pattern} is not shipped; there is: {' '.join(shipped) or 'none'}")
    return ASSETS / name


def _readable(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES)


def read_rows(path: Path, name: str | None = None) -> Iterator[Row]:
    """Yields the rows of one file; `name` is how their places call it."""
    name = name or path.name
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    reader: Callable[[Path, str], Iterator[Row]] = {".csv": _csv_rows, ".parquet": _parquet_rows}.get(suffix, _lines)
    try:
        if suffix == ".json" and _first_character(path, name) == "[":
            reader = _array_rows
        yield from reader(path, name)
    except UNREADABLE as error:
        raise ConfigError(f"{name} cannot be read ({error}): copy or download it again") from error


def encoding(path: Path) -> str:
    """Name of the text encoding by the file's byte-order mark; UTF-8 where there is none."""
    with _opened(path) as stream:
        start = stream.read(4)
    return next((name for mark, name in _BOMS.items() if start.startswith(mark)), "utf-8")


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.name.lower().endswith(".gz") else path.open("rb")


def _pieces(path: Path, name: str) -> Iterator[str]:
    """The file's text piece by piece, so that memory stays flat."""
    codec = encoding(path)
    decoder = codecs.getincrementaldecoder(codec)()
    line = 1
    with _opened(path) as stream:
        while raw := stream.read(_CHUNK):
            try:
                text = decoder.decode(raw)
            except UnicodeDecodeError as error:
                line += error.object[: error.start].count(b"\n")
                wanted = codec.removesuffix("-sig").upper()
                remedy = "convert the file with `iconv -f ITS_ENCODING -t UTF-8`"
                raise ConfigError(f"{name}:{line} is not {wanted}: {remedy}") from error
            line += text.count("\n")
            if text:
                yield text
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        yield _CUT


def _first_character(path: Path, name: str) -> str:
    return next((text.lstrip()[0] for text in _pieces(path, name) if text.strip()), "")


def _text_lines(path: Path, name: str) -> Iterator[str]:
    """Lines without their end; only \\n ends a line, since JSON strings may hold U+2028 and its like."""
    rest: list[str] = []  # joined once per line: a very long line must not cost quadratic time
    for text in _pieces(path, name):
        first, *others = text.split("\n")
        rest.append(first)
        if others:
            yield "".join(rest)
            yield from others[:-1]
            rest = [others[-1]]
    if last := "".join(rest):
        yield last


def _lines(path: Path, name: str) -> Iterator[Row]:
    for number, line in enumerate(_text_lines(path, name), 1):
        if text := line.strip():
            yield _decoded(Place(name, number), text)


def _array_rows(path: Path, name: str) -> Iterator[Row]:
    """The elements of one JSON array, each decoded as soon as it is complete."""
    pieces = _pieces(path, name)
    text = ""
    while not text.strip():
        text += next(pieces)
    text = text.lstrip()[1:]
    for number in itertools.count(1):
        while not (text := text.lstrip(" \t\r\n,")) and (piece := next(pieces, "")):
            text = piece
        if text.startswith("]"):
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
                return _checked(place, value, text[:end]), text[end:]
        except (RecursionError, ValueError) as error:
            problem, incomplete = _shown(error), _is_cut(error, text)
        more = ""
        # Half as much again at least: each try decodes from the start, which must not cost quadratic time.
        while incomplete and len(more) <= len(text) // 2 and (piece := next(pieces, "")):
            more += piece
        if not more:
            raise ConfigError(f"{place} is not JSON ({problem}): mend the array or write it as jsonl, one row per line")
        text += more


def _is_cut(error: Exception, text: str) -> bool:
    # A number, name or escape that the end of the buffer cuts is at most this long.
    return isinstance(error, json.JSONDecodeError) and ("Unterminated" in error.msg or error.pos >= len(text) - 16)


def _csv_rows(path: Path, name: str) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # the default refuses fields above 128 KiB
    reader = csv.reader((line + "\n" for line in _text_lines(path, name)), strict=True)
    header: list[str] = []
    number = 0
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            number += 1
            yield Row(Place(name, number), reason="wrong_type", detail=f"not csv: {error}")
            continue
        if header and any(fields):
            number += 1
            yield _table_row(Place(name, number), header, fields)
        header = header or fields


def _table_row(place: Place, header: list[str], fields: list[str]) -> Row:
    if len(fields) != len(header):
        return Row(place, reason="wrong_type", detail=f"{len(fields)} fields, but the header has {len(header)}")
    return _checked(place, dict(zip(header, fields, strict=True)), "".join(fields))


def _parquet_rows(path: Path, name: str) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=256):
            for at in range(batch.num_rows):
                number += 1
                try:
                    yield Row(Place(name, number), without_nulls(batch.slice(at, 1).to_pylist()[0]))
                except UnicodeDecodeError as error:
                    yield Row(Place(name, number), reason="invalid_text", detail=str(error))
    except pa.ArrowException as error:
        raise ConfigError(f"{name} is not a readable parquet file ({error}): write it again") from error


def without_nulls(value: Any) -> Any:
    """The value without null fields: Arrow fills tool arguments that only other rows have with nulls."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


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
        return _checked(place, _DECODER.decode(text), text)
    except (RecursionError, ValueError) as error:
        return Row(place, reason="invalid_json", detail=_shown(error))


def _checked(place: Place, value: Any, text: str) -> Row:
    """Refuses lone surrogates, which no tokenizer can encode; they come from escapes such as \\ud83d."""
    if "\\u" in text or _CUT in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            return Row(place, reason="invalid_text", detail=f"half a character: {error.object[error.start]!r}")
    return Row(place, value)


def _shown(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error).split(";")[0]
