"""Encoding in several processes."""

from dataclasses import asdict
from pathlib import Path

import pytest

from preparing import go, pairs, write
from sft_exp import chunks
from sft_exp.dataset import load


def test_processes_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr(chunks, "_SIZE", 7)
    path = write(tmp_path / "a.jsonl", [*pairs(60), ("only asked", "")])
    one = go(path, cache / "1", max_bad_fraction=0.1)
    two = go(path, cache / "2", max_bad_fraction=0.1, num_proc=2)
    assert {**asdict(one), "folder": ""} == {**asdict(two), "folder": ""}
    for split in ("train", "eval"):
        assert load(Path(one.folder), split).to_list() == load(Path(two.folder), split).to_list()
