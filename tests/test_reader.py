"""Each kind of file gets its reader, compressed or not."""

import gzip
import json
import random
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

from reading import read, values
from sft_exp.errors import ConfigError


def test_gzip_and_files_that_are_not_what_they_say(tmp_path: Path) -> None:
    assert values(read(tmp_path / "a.jsonl.gz", gzip.compress(b'{"a": 1}\n'))) == [{"a": 1}]
    assert values(read(tmp_path / "a.json.gz", gzip.compress(b'[{"a": 1}]'))) == [{"a": 1}]
    for name in ("b.parquet", "b.arrow", "b.jsonl.gz", "b.json.gz", "b.jsonl.zst", "b.json.zst", "b.csv.zst"):
        with pytest.raises(ConfigError, match=rf"{name} .*(read|readable)"):
            read(tmp_path / name, b"\x1f\x8bnot what the name says")


def packed(*frames: bytes) -> bytes:
    return b"".join(pa.Codec("zstd").compress(frame, asbytes=True) for frame in frames)


def streamed(content: bytes) -> bytes:
    """One frame as `zstd < FILE` writes it: without the length in its header, with a checksum at its end."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    frame = bytearray(bytes(sink.getvalue()))
    frame[4] |= 0b100
    return bytes(frame) + xxhash.xxh64_intdigest(content).to_bytes(8, "little")[:4]


def test_zstandard(tmp_path: Path) -> None:
    one, two = b'{"a": 1}\n', b'{"a": 2}\n'
    wanted = [{"a": 1}, {"a": 2}]
    assert values(read(tmp_path / "a.jsonl.zst", packed(one + two))) == wanted
    assert values(read(tmp_path / "a.JSONL.ZST", packed(one, two))) == wanted
    assert values(read(tmp_path / "a.jsonl.zst", streamed(one) + streamed(two))) == wanted
    assert values(read(tmp_path / "a.json.zst", packed(b'[{"a": 1},', b'{"a": 2}]'))) == wanted
    assert values(read(tmp_path / "a.csv.zst", packed(b"a,b\n1,2\n"))) == [{"a": "1", "b": "2"}]


def test_damaged_zstandard_is_refused_with_its_name(tmp_path: Path) -> None:
    noise = random.Random(0)
    lines = b"".join(json.dumps({"a": noise.random()}).encode() + b"\n" for _ in range(20_000))
    whole = streamed(lines)
    assert len(read(tmp_path / "a.jsonl.zst", whole + whole)) == 40_000
    cuts = [1, 3, 5, len(whole) // 2, len(whole) - 1]
    damaged = [whole[:cut] for cut in cuts] + [whole + whole[:cut] for cut in cuts] + [whole + b"junk"]
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0x55
    for content in [*damaged, bytes(flipped)]:
        with pytest.raises(ConfigError, match=r"^a\.jsonl\.zst cannot be read \(.+\): copy or download it again\.$"):
            read(tmp_path / "a.jsonl.zst", content)
