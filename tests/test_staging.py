"""The cache: made once, all at once, and nothing is left behind."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from preparing import DATA, go, pairs, write
from sft_exp import dataset, staging
from sft_exp.errors import ConfigError
from sft_exp.tokenizer import SHIPPED


def test_prepared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    path = write(tmp_path / "a.jsonl", pairs(5))
    first = go(path, cache)
    other_chars = go(path, cache, max_length=64).fingerprint
    monkeypatch.setattr(dataset, "_fill", lambda *_: pytest.fail("worked again"))
    assert go(path, cache, num_proc=2, name="x") == first
    path.touch()
    assert go(path, cache) == first
    monkeypatch.undo()
    changed = write(tmp_path / "a.jsonl", pairs(6))
    other_template = PreTrainedTokenizerFast.from_pretrained(SHIPPED)
    other_template.chat_template = f"{{# other #}}{other_template.chat_template}"
    prints = [go(changed, cache).fingerprint, go(changed, cache, tokenizer=other_template).fingerprint]
    assert len({first.fingerprint, other_chars, *prints}) == 4
    assert sorted(file.name for file in cache.iterdir()) == sorted({first.fingerprint, other_chars, *prints})


def test_refused_data_leaves_nothing(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(ConfigError, match=r"dataset\.max_bad_fraction"):
        go(DATA / "cut_off.jsonl", cache)
    assert [path for path in cache.iterdir() if path.name != "digests.json"] == []


def test_two_preparers_at_once(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    path = write(tmp_path / "a.jsonl", pairs(50))
    first = go(path, cache)

    # The other one has published between our look and our rename.
    late = cache / ".late"
    late.mkdir()
    (late / "report.json").write_text("{}")
    staging.publish(late, Path(first.folder))
    assert go(path, cache) == first
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=go, args=(path, cache / "x")) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert [file.name for file in (cache / "x").iterdir()] == [first.fingerprint]


def test_what_killed_processes_left_is_removed_after_a_day(tmp_path: Path) -> None:
    cache, days_ago = tmp_path / "cache", time.time() - 2 * 24 * 3600
    hidden = {name: cache / f".{name * 32}.{'0' * 32}" for name in ("a", "b", "c")}
    others = [cache / ("d" * 32), cache / ".other.folder"]
    for folder in (*hidden.values(), *others):
        (folder / "train").mkdir(parents=True)
        (folder / "all.arrow").touch()
    for path in cache.rglob("*"):
        os.utime(path, (days_ago, days_ago))
    os.utime(hidden["b"] / "all.arrow")  # still being written to
    os.utime(hidden["c"])  # just begun
    made = go(write(tmp_path / "a.jsonl", pairs(3)), cache)
    assert set(cache.iterdir()) == {hidden["b"], hidden["c"], *others, Path(made.folder)}
