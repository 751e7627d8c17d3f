"""Rows of csv and parquet."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from reading import read, values
from sft_exp.reader import read_rows


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


def test_parquet(tmp_path: Path) -> None:
    calls = [{"args": {"x": 1}}, {"args": {"y": "ü"}}]
    pq.write_table(pa.table({"calls": [[calls[0]], [calls[1]]], "n": [1, None]}), tmp_path / "a.parquet")
    found = list(read_rows(tmp_path / "a.parquet"))
    assert values(found) == [{"calls": [calls[0]], "n": 1}, {"calls": [calls[1]]}]
    assert str(found[1].place) == "a.parquet:2"
