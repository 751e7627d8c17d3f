"""Rows of JSON: places, damage, arrays."""

from pathlib import Path

import pytest

from reading import read, values
from sft_exp.errors import ConfigError


def test_blank_lines_are_not_rows_but_count_as_lines(tmp_path: Path) -> None:
    found = read(tmp_path / "a.jsonl", '{"a": 1}\r\n\r\n  \n{"a": "x\u2028y"}\n{"a": 3}')
    assert values(found) == [{"a": 1}, {"a": "x\u2028y"}, {"a": 3}]
    assert [str(row.place) for row in found] == ["a.jsonl:1", "a.jsonl:4", "a.jsonl:5"]


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


@pytest.mark.parametrize("after", ['\n[{"a": 3}]', ' {"a": 3}', "]"])
def test_what_follows_an_array_is_not_lost_in_silence(tmp_path: Path, after: str) -> None:
    with pytest.raises(ConfigError, match=r"a\.json:3 ends the array and more follows"):
        read(tmp_path / "a.json", '[{"a": 1}, {"a": 2}]' + after)
    assert len(read(tmp_path / "a.json", '[{"a": 1}]\n \n')) == 1
