"""Rows come from files, from several of them, and from mixtures."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from preparing import accepted, go, pairs, places, shipped, write
from sft_exp.errors import ConfigError
from sft_exp.schema import Dataset, DatasetKind, Part
from sft_exp.sources import Source, open_sources


def opened(tmp_path: Path, **fields: Any) -> list[Source]:
    return open_sources(Dataset(**fields), tmp_path / "cache")


def shown(source: Source) -> list[str]:
    return [str(row.place) for row in source.read()]


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


def test_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "a.jsonl", pairs(1))
    monkeypatch.chdir(tmp_path)
    [both] = opened(tmp_path, path=["two/a.jsonl", str(tmp_path / "one"), "two/*"])
    assert shown(both) == ["two/a.jsonl:1", "one/a.jsonl:1"] and both.name == "a.jsonl and 1 more"
    [single] = opened(tmp_path, path=["one/a.jsonl"])
    assert shown(single) == ["a.jsonl:1"] and single.name == "a.jsonl"
    [plain] = opened(tmp_path, path="one/a.jsonl")
    assert plain.identity == single.identity != both.identity


def test_encodings(tmp_path: Path) -> None:
    text = '{"text": "é"}\n'
    (tmp_path / "a.jsonl").write_bytes(text.encode("utf-16"))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(text.encode("utf-8-sig")))
    (tmp_path / "c.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "d.parquet").write_bytes(b"\xff\xfe")
    [source] = opened(tmp_path, path=str(tmp_path))
    assert source.encodings == {"a.jsonl": "utf-16", "b.jsonl.gz": "utf-8-sig"}
    (tmp_path / "b.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(ConfigError, match=r"b\.jsonl\.gz cannot be read"):
        opened(tmp_path, path=str(tmp_path))


def test_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hf")
    (tmp_path / "hub").mkdir()
    for name in ("chats", "web", "hub/train"):
        write(tmp_path / f"{name}.jsonl", pairs(2))
    parts = {
        "chat": Part(path=str(tmp_path / "chats.jsonl"), weight=3, limit=1),
        "web": Part(path=[str(tmp_path / "web.jsonl"), str(tmp_path / "chats.jsonl")], weight=1),
        "far": Part(kind=DatasetKind.hub, path=str(tmp_path / "hub"), weight=0.5),
    }
    sources = opened(tmp_path, mixture=parts)
    assert [(source.name, source.weight, source.limit) for source in sources] == [
        ("chat", 3, 1),
        ("web", 1, None),
        ("far", 0.5, None),
    ]
    assert [shown(source) for source in sources] == [
        ["chat/chats.jsonl:1", "chat/chats.jsonl:2"],
        ["web/web.jsonl:1", "web/web.jsonl:2", "web/chats.jsonl:1", "web/chats.jsonl:2"],
        [f"far/{tmp_path}/hub:1", f"far/{tmp_path}/hub:2"],
    ]
    renamed = opened(tmp_path, mixture={"talk": parts["chat"]})
    assert renamed[0].identity != sources[0].identity  # the places are others
    json.dumps([source.identity for source in sources])
    with pytest.raises(ConfigError, match=r"^dataset\.mixture\.chat\.path=none\.csv does not exist"):
        opened(tmp_path, mixture={"chat": Part(path="none.csv")})
    with pytest.raises(ConfigError, match=r"check dataset\.mixture\.far\.path, \.config"):
        opened(tmp_path, mixture={"far": Part(kind=DatasetKind.hub, path=str(tmp_path / "hub"), split="x")})


def test_files_without_rows_are_named(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path / f"{name}.jsonl", pairs(3) if name == "b" else [])
    path = tmp_path / "*.jsonl"
    assert go(path, tmp_path / "cache").empty_files == ["a.jsonl", "c.jsonl"]
    assert go(path, tmp_path / "cache", limit=2).empty_files == ["a.jsonl"]  # the last may not have been read


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (Part(path="empty.jsonl"), "dataset.mixture.web has no rows"),
        (Part(path="bad.jsonl"), "dataset.mixture.web has 1 rows and none is kept"),
        (Part(path="more.jsonl", weight=1e-9), "dataset.mixture.web.weight=1e-09 uses none of its 3 conversations"),
    ],
)
def test_a_part_that_gives_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: Part, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "chat.jsonl", pairs(3))
    write(tmp_path / "more.jsonl", pairs(3, start=10))
    write(tmp_path / "bad.jsonl", [("", "")])
    write(tmp_path / "empty.jsonl", [])
    chat = Part(path="chat.jsonl", weight=part.weight and 1.0)
    config = Dataset(mixture={"chat": chat, "web": part}, max_bad_fraction=1.0)
    with pytest.raises(ConfigError) as caught:
        accepted(config, tmp_path / "cache", shipped())
    assert words in str(caught.value)


def test_evaluation_rows_of_a_mixture_are_used_ones(tmp_path: Path) -> None:
    for seed in range(5):
        write(tmp_path / "a.jsonl", pairs(40, start=1000 * seed))
        write(tmp_path / "b.jsonl", pairs(2, start=1000 * seed + 500))
        parts = {name: Part(path=str(tmp_path / f"{name}.jsonl"), weight=1) for name in ("a", "b")}
        report = accepted(Dataset(mixture=parts), tmp_path / "cache", shipped())
        assert (report.train_rows, report.eval_rows) == (3, 1)
