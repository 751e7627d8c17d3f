"""Reading files row by row: places, encodings, damage."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sft_exp import rows
from sft_exp.errors import ConfigError
from sft_exp.rows import Row, encoding, find_files, read_rows


def read(path: Path, content: bytes | str) -> list[Row]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read_rows(path))


def values(found: list[Row]) -> list[Any]:
    assert all(row.reason is None for row in found), found
    return [row.value for row in found]


def test_blank_lines_are_not_rows_but_count_as_lines(tmp_path: Path) -> None:
    found = read(tmp_path / "a.jsonl", '{"a": 1}\r\n\r\n  \n{"a": "x\u2028y"}\n{"a": 3}')
    assert values(found) == [{"a": 1}, {"a": "x\u2028y"}, {"a": 3}]
    assert [str(row.place) for row in found] == ["a.jsonl:1", "a.jsonl:4", "a.jsonl:5"]


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("suffix", ["json", "jsonl", "csv"])
def test_encodings(tmp_path: Path, codec: str, suffix: str) -> None:
    text = {"json": '[{"a": "你好"}]', "jsonl": '{"a": "你好"}\n', "csv": "a\n你好\n"}[suffix]
    path = tmp_path / f"a.{suffix}"
    assert values(read(path, text.encode(codec))) == [{"a": "你好"}]
    assert encoding(path) == codec


@pytest.mark.parametrize("suffix", ["json", "jsonl", "csv"])
def test_other_encodings_are_refused_with_their_line(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(ConfigError, match=rf"a\.{suffix}:3 is not UTF-8: .*iconv"):
        read(tmp_path / f"a.{suffix}", "[\n\n你好".encode("gbk"))


def test_characters_across_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in range(1, 9):
        monkeypatch.setattr(rows, "_CHUNK", size)
        wanted = [{"a": "你好 🌊\\", "b": [1.5e10, True, None]}, {"c": "é"}, {}]
        lines = "\n".join(json.dumps(value, ensure_ascii=size % 2 == 0) for value in wanted)
        assert values(read(tmp_path / "a.jsonl", lines)) == wanted
        assert values(read(tmp_path / "a.json", "\ufeff \n" + json.dumps(wanted, indent=1))) == wanted


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        ('{"a": ', "invalid_json", "Expecting value"),
        ('{"a": 1} {"a": 2}', "invalid_json", "Extra data"),
        ('{"a": 1, "a": 2}', "invalid_json", "'a' stands twice"),
        ('{"a": "cut \\ud83d here"}', "invalid_text", "half a character"),
        ('{"\\uDE00": 1}', "invalid_text", "half a character"),
        ("[" * 100_000, "invalid_json", "nested too deeply"),
        ('{"a": ' + "9" * 10_000 + "}", "invalid_json", "4300 digits"),
        ("\x00\x00", "invalid_json", "Expecting value"),
    ],
)
def test_damaged_lines(tmp_path: Path, line: str, reason: str, detail: str) -> None:
    found = read(tmp_path / "a.jsonl", '{"a": 0}\n' + line + '\n{"a": 2}\n')
    assert [row.reason for row in found] == [None, reason, None]
    assert detail in found[1].detail and str(found[1].place) == "a.jsonl:2"


def test_character_cut_by_the_end_of_the_file(tmp_path: Path) -> None:
    assert [row.reason for row in read(tmp_path / "a.jsonl", '{"a": 1}\n{"a": "你'.encode()[:-1])] == [
        None,
        "invalid_json",
    ]
    assert [row.reason for row in read(tmp_path / "a.csv", "a\nx\n你".encode()[:-1])] == [None, "invalid_text"]


def test_nan_is_null(tmp_path: Path) -> None:
    assert values(read(tmp_path / "a.jsonl", '{"input": NaN, "b": -Infinity}')) == [{"input": None, "b": None}]


def test_array(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert values(read(path, "[]")) == [] and values(read(path, " [ ] ")) == []
    found = read(path, '[{"a": 1}, "x", {"a": "\\ud83d"}, 12]')
    assert [row.value for row in found] == [{"a": 1}, "x", None, 12]
    assert [str(row.place) for row in found] == [f"a.json:{at}" for at in (1, 2, 3, 4)]
    assert values(read(path, '{"a": 1}\n{"a": 2}\n')) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    "text", ['[{"a": 1}, {"a": ', '[{"a": 1}, {"a": 2}', '[{"a": 1}, {b}]', '[{"a": 1}, ' + "[" * 9**5]
)
def test_damaged_array_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"a\.json:[23] is not JSON"):
        read(tmp_path / "a.json", text)


def test_csv(tmp_path: Path) -> None:
    found = read(tmp_path / "a.csv", 'q,a\r\n"say ""hi"", x","two\nlines"\r\n\r\n1,2,3\n4\n"x"y,1\n5,6\n"open,1')
    assert [row.value for row in found if not row.reason] == [
        {"q": 'say "hi", x', "a": "two\nlines"},
        {"q": "5", "a": "6"},
    ]
    assert [(row.place.number, row.reason) for row in found if row.reason] == [
        (2, "wrong_type"),
        (3, "wrong_type"),
        (4, "wrong_type"),
        (6, "wrong_type"),
    ]
    assert len(values(read(tmp_path / "a.csv", "a,b\n" + "x" * 500_000 + ",y\n"))) == 1


def test_parquet_and_gzip(tmp_path: Path) -> None:
    calls = [{"args": {"x": 1}}, {"args": {"y": "ü"}}]
    pq.write_table(pa.table({"calls": [[calls[0]], [calls[1]]], "n": [1, None]}), tmp_path / "a.parquet")
    found = list(read_rows(tmp_path / "a.parquet"))
    assert values(found) == [{"calls": [calls[0]], "n": 1}, {"calls": [calls[1]]}]
    assert str(found[1].place) == "a.parquet:2"
    assert values(read(tmp_path / "a.jsonl.gz", gzip.compress(b'{"a": 1}\n'))) == [{"a": 1}]
    assert values(read(tmp_path / "a.json.gz", gzip.compress(b'[{"a": 1}]'))) == [{"a": 1}]
    for name in ("b.parquet", "b.jsonl.gz", "b.json.gz"):
        with pytest.raises(ConfigError, match=rf"{name} .*(read|readable)"):
            read(tmp_path / name, b"\x1f\x8bnot what the name says")


def test_find_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b/c.csv", "a.jsonl", "b/d.JSON.gz", "notes.txt", ".cache/x.json", "e.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [file.relative_to(tmp_path).as_posix() for file in find_files(str(tmp_path))]
    assert found == ["a.jsonl", "b/c.csv", "b/d.JSON.gz", "e.parquet"]
    assert find_files(str(tmp_path / "a.jsonl")) == [tmp_path / "a.jsonl"]
    assert find_files(str(tmp_path / "**" / "*.csv")) == [tmp_path / "b" / "c.csv"]
    (tmp_path / "odd[1].csv").touch()
    assert find_files(str(tmp_path / "odd[1].csv")) == [tmp_path / "odd[1].csv"]
    monkeypatch.setattr(rows, "ASSETS", tmp_path)
    assert find_files("sample:a.jsonl") == [tmp_path / "a.jsonl"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("nowhere.jsonl", "does not exist"),
        ("*.csv", "does not exist"),
        ("sub", "holds no data file"),
        ("a.txt", "convert"),
        ("sample:none.jsonl", "not shipped"),
        ("sample:../rows.py", "not shipped"),
    ],
)
def test_find_files_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").touch()
    with pytest.raises(ConfigError, match=message) as caught:
        find_files(pattern)
    assert f"dataset.path={pattern}" in str(caught.value)
