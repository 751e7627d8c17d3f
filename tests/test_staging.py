"""The cache: made once, all at once, and nothing is left behind."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from preparing import DATA, go, pairs, write
from sft_exp import build, staging
from sft_exp.errors import ConfigError
from sft_exp.tokenizer import SHIPPED


def test_prepared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    path = write(tmp_path / "a.jsonl", pairs(5))
    first = go(path, cache)
    other_chars = go(path, cache, max_length=64).fingerprint
    monkeypatch.setattr(build, "build", lambda *_: pytest.fail("worked again"))
    assert go(path, cache, num_proc=2, name="x") == first
    path.touch()
    assert go(path, cache) == first
    monkeypatch.undo()
    changed = write(tmp_path / "a.jsonl", pairs(6))
    other_template = PreTrainedTokenizerFast.from_pretrained(SHIPPED)
    other_template.chat_template = f"{{# other #}}{other_template.chat_template}"
    prints = [go(changed, cache).fingerprint, go(changed, cache, tokenizer=other_template).fingerprint]
    assert len({first.fingerprint, other_chars, *prints}) == 4
    assert {file.name for file in visible(cache)} == {first.fingerprint, other_chars, *prints}


def visible(folder: Path) -> list[Path]:
    return [file for file in folder.iterdir() if file.is_dir() and not file.name.startswith(".")]


def test_unreadable_data_leaves_nothing(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (tmp_path / "a.json").write_text('[{"text": "never closed"}')
    with pytest.raises(ConfigError, match="not closed"):
        go(tmp_path / "a.json", cache)
    assert visible(cache) == []


def test_refused_rows_are_judged_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(ConfigError, match=r"dataset\.max_bad_fraction"):
        go(DATA / "cut_off.jsonl", cache)
    monkeypatch.setattr(build, "build", lambda *_: pytest.fail("worked again"))
    with pytest.raises(ConfigError, match=r"dataset\.max_bad_fraction"):
        go(DATA / "cut_off.jsonl", cache)
    assert go(DATA / "cut_off.jsonl", cache, max_bad_fraction=0.5).kept == 2


def test_two_preparers_at_once(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    path = write(tmp_path / "a.jsonl", pairs(50))
    first = go(path, cache)

    # On a file system without locks the other one may publish between our look and our rename.
    with staging.staged(Path(first.folder)) as late:
        (late / "report.json").write_text("{}")
    assert go(path, cache) == first
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=go, args=(path, cache / "x")) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert [file.name for file in visible(cache / "x")] == [first.fingerprint]


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
    left = {path for path in cache.iterdir() if path.is_dir()}
    assert left == {hidden["b"], hidden["c"], *others, Path(made.folder)}
