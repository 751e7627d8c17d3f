"""Rows come from a folder or from the hub."""

from pathlib import Path
from typing import Any

import datasets
import pytest

from preparing import accepted, go, pairs, places, shipped, write
from sft_exp.errors import ConfigError
from sft_exp.schema import Dataset, DatasetKind


def test_folder_and_limit(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (tmp_path / "in" / "sub").mkdir(parents=True)
    write(tmp_path / "in" / "a.jsonl", pairs(3))
    write(tmp_path / "in" / "sub" / "a.jsonl", pairs(3, start=3))
    report = go(tmp_path / "in", cache, limit=5, eval_fraction=0)
    assert places(report, "train") == [
        f"{name}:{at}" for name, at in [("a.jsonl", 1), ("a.jsonl", 2), ("a.jsonl", 3)]
    ] + [
        "sub/a.jsonl:1",
        "sub/a.jsonl:2",
    ]


def test_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    asked = []

    def fake(*args: Any, **options: Any) -> datasets.Dataset:
        asked.append((args, options))
        return datasets.Dataset.from_list([{"question": question, "answer": answer} for question, answer in pairs(3)])

    monkeypatch.setattr(datasets, "load_dataset", fake)
    config = Dataset(kind=DatasetKind.hub, path="org/name", config="0625", revision="main", eval_fraction=0)
    report = accepted(config, cache, shipped())
    assert places(report, "train") == ["org/name:1", "org/name:2", "org/name:3"]
    assert asked == [(("org/name", "0625"), {"split": "train", "revision": "main"})]

    def offline(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach 'org/name' on the Hub\nlong story")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(ConfigError, match=r"dataset\.path=org/name cannot be loaded .* on the Hub\): check"):
        accepted(config, cache, shipped())
