"""Rows of the hub, through `datasets` itself, from a folder laid out like a repository there."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import config

from sft_exp.errors import ConfigError
from sft_exp.schema import Dataset, DatasetKind
from sft_exp.sources import Source, open_sources

README = """---
configs:
- config_name: default
  data_files:
  - {split: train, path: "plain/train-*.jsonl"}
  - {split: test, path: plain/test.jsonl}
- config_name: "0625"
  data_files: tools/*.jsonl
---
"""
CALLS = [{"call": {"args": {"x": 1}}}, {"call": {"args": {"y": 2}}}]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two configurations, one of them with two splits, one of these in two files."""
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "hf")
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "README.md").write_text(README)
    write(folder / "plain" / "train-0.jsonl", [{"text": f"row {at}"} for at in range(3)])
    write(folder / "plain" / "train-1.jsonl", [{"text": f"row {at}"} for at in range(3, 5)])
    write(folder / "plain" / "test.jsonl", [{"text": "test"}])
    write(folder / "tools" / "0.jsonl", CALLS)
    return folder


def hub(path: Path | str, cache: Path, **fields: Any) -> Source:
    [source] = open_sources(Dataset(kind=DatasetKind.hub, path=str(path), **fields), cache)
    return source


@pytest.mark.parametrize("streaming", [False, True])
def test_configurations_and_splits(repository: Path, tmp_path: Path, streaming: bool) -> None:
    train = hub(repository, tmp_path, streaming=streaming)
    found = list(train.read())
    assert [row.value for row in found] == [{"text": f"row {at}"} for at in range(5)]
    assert [str(row.place) for row in found[:2]] == [f"{repository}:1", f"{repository}:2"]
    assert list(train.read()) == found  # once more from the start
    test = hub(repository, tmp_path, streaming=streaming, split="test", config="default")
    assert [row.value for row in test.read()] == [{"text": "test"}]
    tools = hub(repository, tmp_path, streaming=streaming, config="0625")
    assert [row.value for row in tools.read()] == CALLS  # without the nulls that Arrow puts in
    assert bool(list((tmp_path / "hf").rglob("*.arrow"))) is not streaming
    assert len({json.dumps(source.identity) for source in (train, test, tools)}) == 3


def test_part_of_a_split(repository: Path, tmp_path: Path) -> None:
    assert [row.value for row in hub(repository, tmp_path, split="train[1:3]").read()] == [
        {"text": "row 1"},
        {"text": "row 2"},
    ]


@pytest.mark.parametrize("streaming", [False, True])
def test_identity_follows_the_content(repository: Path, tmp_path: Path, streaming: bool) -> None:
    first = hub(repository, tmp_path, streaming=streaming).identity
    assert hub(repository, tmp_path, streaming=streaming).identity == first
    write(repository / "plain" / "train-1.jsonl", [{"text": "another"}])
    changed = hub(repository, tmp_path, streaming=streaming)
    assert changed.identity != first
    assert [row.value["text"] for row in changed.read()] == ["row 0", "row 1", "row 2", "another"]


def test_a_stream_reads_no_more_than_it_is_asked_for(repository: Path, tmp_path: Path) -> None:
    (repository / "plain" / "train-1.jsonl").write_text("this is not JSON\n")
    rows = hub(repository, tmp_path, streaming=True).read()
    assert [next(rows).value["text"] for _ in range(3)] == ["row 0", "row 1", "row 2"]
    with pytest.raises(
        ConfigError, match=r"^dataset\.path=\S+ cannot be read after row 3 \(\w+: .*JSON.*\): start again"
    ):
        next(rows)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("fields", "cause"), [({"split": "nope"}, "split.*nope"), ({"config": "0626"}, "0626.*Available.*0625")]
)
def test_what_is_not_there(
    repository: Path, tmp_path: Path, streaming: bool, fields: dict[str, str], cause: str
) -> None:
    with pytest.raises(
        ConfigError, match=rf"cannot be loaded from the hub \(ValueError: .*{cause}.*\): check dataset\.path, "
    ):
        hub(repository, tmp_path, streaming=streaming, **fields)


def test_data_that_datasets_cannot_read(repository: Path, tmp_path: Path) -> None:
    (repository / "plain" / "train-1.jsonl").write_text("this is not JSON\n")
    with pytest.raises(ConfigError, match=r"cannot be loaded from the hub \(\w+: .*JSON"):
        hub(repository, tmp_path)


def test_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"^dataset\.path=org/name cannot be loaded from the hub \(.+\): check .*\.$"):
        hub("org/name", tmp_path)


def test_the_steps_are_those_of_load_dataset(repository: Path, tmp_path: Path) -> None:
    table = datasets.load_dataset(str(repository), "0625", split="train", cache_dir=str(tmp_path / "other"))
    assert len(table) == len(list(hub(repository, tmp_path, config="0625").read()))
