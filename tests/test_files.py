"""Which files `dataset.path` names."""

from pathlib import Path

import datasets
import pytest

from sft_exp import files
from sft_exp.errors import ConfigError
from sft_exp.files import find_files


def test_find_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "b/c.csv",
        "a.jsonl",
        "b/d.JSON.gz",
        "notes.txt",
        ".cache/x.json",
        "e.parquet",
        "f.arrow",
        "g.tsv.zst",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [file.relative_to(tmp_path).as_posix() for file in find_files(str(tmp_path))]
    assert found == ["a.jsonl", "b/c.csv", "b/d.JSON.gz", "e.parquet", "f.arrow", "g.tsv.zst"]
    assert find_files(str(tmp_path / "a.jsonl")) == [tmp_path / "a.jsonl"]
    assert find_files(str(tmp_path / "**" / "*.csv")) == [tmp_path / "b" / "c.csv"]
    (tmp_path / "odd[1].csv").touch()
    assert find_files(str(tmp_path / "odd[1].csv")) == [tmp_path / "odd[1].csv"]
    monkeypatch.setattr(files, "ASSETS", tmp_path)
    assert find_files("sample:a.jsonl") == [tmp_path / "a.jsonl"]


def test_lists_keep_their_order_and_a_file_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("b.jsonl", "a.jsonl", "c.csv")
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "link.csv").symlink_to("c.csv")
    found = find_files(["b.jsonl", "*.jsonl", str(tmp_path / "c.csv"), "./b.jsonl", "link.csv"])
    assert [file.name for file in found] == ["b.jsonl", "a.jsonl", "link.csv"]
    with pytest.raises(ConfigError, match=r"^dataset\.mixture\.x\.path=no\.csv does not exist"):
        find_files(["b.jsonl", "no.csv"], "dataset.mixture.x.path")


def test_folder_of_save_to_disk(tmp_path: Path, cache: Path) -> None:
    rows = datasets.Dataset.from_dict({"text": ["a", "b"]})
    rows.save_to_disk(str(tmp_path / "one"), num_shards=2)
    again = datasets.load_from_disk(str(tmp_path / "one"))
    again.map(lambda row: {"text": row["text"] * 2})
    assert list((tmp_path / "one").glob("cache-*.arrow")), "map leaves its cache beside the data"
    shards = [f"data-0000{at}-of-00002.arrow" for at in range(2)]
    assert [file.name for file in find_files(str(tmp_path / "one"))] == shards
    assert [file.name for file in find_files(str(tmp_path / "one" / "*"))] == shards
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(str(tmp_path / "both"))
    with pytest.raises(ConfigError, match=r"holds the splits train, test: .* such as .*/both/train\."):
        find_files(str(tmp_path / "both"))
    assert [file.suffix for file in find_files(str(tmp_path / "both" / "test"))] == [".arrow"]


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


def test_each_path_of_a_list_that_names_nothing_has_its_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_files(
            [str(tmp_path / "a.jsonl"), "/dev/null", "/here/https:/host/b.jsonl", str(tmp_path / "ORG" / "NAME")]
        )
    first, second, third, fourth = caught.value.problems
    assert "does not exist" in first and "neither a file nor a folder" in second
    assert "dataset.path=https://host/b.jsonl is an address" in third and "set dataset.kind=hub" in fourth


def test_linked_folders_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.jsonl").touch()
    (tmp_path / "data" / "linked").symlink_to("../other")
    (tmp_path / "data" / "loop").symlink_to(".")
    assert find_files(str(tmp_path / "data")) == [tmp_path / "data" / "linked" / "a.jsonl"]
