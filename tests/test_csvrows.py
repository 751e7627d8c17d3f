"""Rows of csv and tsv."""

from pathlib import Path

import pytest

from reading import read, values
from sft_exp.errors import ConfigError


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


def test_tsv(tmp_path: Path) -> None:
    assert values(read(tmp_path / "a.tsv", 'q\ta\n"x\ty"\t1, 2\n')) == [{"q": "x\ty", "a": "1, 2"}]


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.csv has two columns named 'q', of which one would be lost"):
        read(tmp_path / "a.csv", "q,q,a\n1,2,3\n")
    assert values(read(tmp_path / "a.csv", "q,,\n1,,\n")) == [{"q": "1", "": ""}]  # a spreadsheet's empty columns
