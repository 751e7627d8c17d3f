"""Each kind of file gets its reader, gzipped or not."""

import gzip
from pathlib import Path

import pytest

from reading import read, values
from sft_exp.errors import ConfigError


def test_gzip_and_files_that_are_not_what_they_say(tmp_path: Path) -> None:
    assert values(read(tmp_path / "a.jsonl.gz", gzip.compress(b'{"a": 1}\n'))) == [{"a": 1}]
    assert values(read(tmp_path / "a.json.gz", gzip.compress(b'[{"a": 1}]'))) == [{"a": 1}]
    for name in ("b.parquet", "b.jsonl.gz", "b.json.gz"):
        with pytest.raises(ConfigError, match=rf"{name} .*(read|readable)"):
            read(tmp_path / name, b"\x1f\x8bnot what the name says")
