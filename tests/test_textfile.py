"""The text of files: encodings, and characters that reads or the end of the file cut."""

import json
from pathlib import Path

import pytest

from reading import read, values
from sft_exp import textfile
from sft_exp.errors import ConfigError
from sft_exp.textfile import encoding


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("suffix", ["json", "jsonl", "csv"])
def test_encodings(tmp_path: Path, codec: str, suffix: str) -> None:
    text = {"json": '[{"a": "你好"}]', "jsonl": '{"a": "你好"}\n', "csv": "a\n你好\n"}[suffix]
    path = tmp_path / f"a.{suffix}"
    assert values(read(path, text.encode(codec))) == [{"a": "你好"}]
    assert encoding(path) == codec


@pytest.mark.parametrize("suffix", ["json", "jsonl", "csv"])
def test_bytes_of_another_encoding_make_their_row_bad_and_no_other(tmp_path: Path, suffix: str) -> None:
    good, bad = b'{"a": "ok"}', '{"a": "你好"}'.encode("gbk")
    content = {
        "json": b"[" + b",".join([good, bad, good]) + b"]",
        "jsonl": b"\n".join([good, bad, good]),
        "csv": b"a\nok\n" + "你好".encode("gbk") + b"\nok\n",
    }[suffix]
    first, second, third = read(tmp_path / f"a.{suffix}", content)
    assert first.value == third.value == {"a": "ok"}
    assert second.reason == "invalid_text" and "byte 0xc4 is not UTF-8" in second.detail and "iconv" in second.detail


def test_damaged_utf16_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.jsonl:2 is not UTF-16"):
        read(tmp_path / "a.jsonl", '{"a": 1}\n'.encode("utf-16") + b"\x00\xd8\x00\xd8")


def test_characters_across_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in range(1, 9):
        monkeypatch.setattr(textfile, "_CHUNK", size)
        wanted = [{"a": "你好 🌊\\", "b": [1.5e10, True, None]}, {"c": "é"}, {}]
        lines = "\n".join(json.dumps(value, ensure_ascii=size % 2 == 0) for value in wanted)
        assert values(read(tmp_path / "a.jsonl", lines)) == wanted
        assert values(read(tmp_path / "a.json", "\ufeff \n" + json.dumps(wanted, indent=1))) == wanted


def test_character_cut_by_the_end_of_the_file(tmp_path: Path) -> None:
    assert [row.reason for row in read(tmp_path / "a.jsonl", '{"a": 1}\n{"a": "你'.encode()[:-1])] == [
        None,
        "invalid_json",
    ]
    assert [row.reason for row in read(tmp_path / "a.csv", "a\nx\n你".encode()[:-1])] == [None, "invalid_text"]
