"""The text of a file in any Unicode encoding, compressed or not, decoded piece by piece so that memory stays flat."""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from sft_exp.errors import ConfigError
from sft_exp.rows import CUT

UNREADABLE = (OSError, EOFError, zlib.error)
"""What reading a file may raise that is the file's fault."""
_BOMS = {  # UTF-32 first: its mark begins like that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
_CHUNK = 1 << 18  # bytes


def encoding(path: Path) -> str:
    """Name of the text encoding by the file's byte-order mark; UTF-8 where there is none."""
    with _opened(path) as stream:
        start = stream.read(4)
    return next((name for mark, name in _BOMS.items() if start.startswith(mark)), "utf-8")


def _opened(path: Path) -> IO[bytes]:
    match path.suffix.lower():
        case ".gz":
            return cast(IO[bytes], gzip.open(path))
        case ".zst":
            import pyarrow

            return cast(IO[bytes], pyarrow.input_stream(str(path), compression="zstd"))
    return path.open("rb")


def pieces(path: Path, name: str) -> Iterator[str]:
    """Yield the file's text; `name` is what messages call the file."""
    codec = encoding(path)
    # Bytes that are not UTF-8 make their row bad, not the file: they pass as half characters, which `rows` finds.
    decoder = codecs.getincrementaldecoder(codec)("surrogateescape" if codec.startswith("utf-8") else "strict")
    line = 1
    with _opened(path) as stream:
        while raw := stream.read(_CHUNK):
            try:
                text = decoder.decode(raw)
            except UnicodeDecodeError as error:
                line += error.object[: error.start].count(b"\n")
                raise ConfigError(f"{name}:{line} is not {codec.upper()}: write the file again as UTF-8.") from error
            line += text.count("\n")
            if text:
                yield text
    try:
        if decoder.decode(b"", final=True):
            yield CUT
    except UnicodeDecodeError:
        yield CUT


def first_character(path: Path, name: str) -> str:
    """The first character that is not white space; empty if there is none."""
    return next((text.lstrip()[0] for text in pieces(path, name) if text.strip()), "")


def lines(path: Path, name: str) -> Iterator[str]:
    """Yield lines without their end; only \\n ends a line, since JSON strings may hold U+2028 and its like."""
    rest: list[str] = []  # joined once per line: a very long line must not cost quadratic time
    for text in pieces(path, name):
        first, *others = text.split("\n")
        rest.append(first)
        if others:
            yield "".join(rest)
            yield from others[:-1]
            rest = [others[-1]]
    if last := "".join(rest):
        yield last
