"""Which files `dataset.path` names."""

from pathlib import Path

import pytest

from sft_exp import rows
from sft_exp.errors import ConfigError
from sft_exp.rows import find_files


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
    assert str(caught.value).startswith(f"dataset.path={pattern} ") and str(caught.value).endswith(".")
