"""Preparing data: the verdict on every case, the split, the cache, and that damage never ends in a traceback."""

from __future__ import annotations

import json
import multiprocessing
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import datasets
import pytest
from transformers import PreTrainedTokenizerFast

from sft_exp import dataset
from sft_exp.dataset import Prepared, load, prepare
from sft_exp.errors import ConfigError
from sft_exp.schema import Dataset, DatasetKind

HERE = Path(__file__).parent
DATA = HERE / "cases" / "data"
ASSETS = HERE.parent / "src" / "sft_exp" / "assets" / "tokenizer"
EXPECTED: dict[str, dict[str, Any]] = json.loads((DATA / "expected.json").read_text())
COLUMNS = {"input_ids", "labels", "row"}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(ASSETS)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def write(path: Path, pairs: list[tuple[str, str]]) -> Path:
    rows = [{"question": question, "answer": answer} for question, answer in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def pairs(count: int, start: int = 0) -> list[tuple[str, str]]:
    return [(f"What is {at} + 1?", f"It is {at + 1}.") for at in range(start, start + count)]


def go(path: Path | str, tokenizer: PreTrainedTokenizerFast, cache: Path, **fields: Any) -> Prepared:
    return prepare(Dataset(path=str(path), **fields), tokenizer, cache=cache, seed=0)


def numbers(report: Prepared, reason: str) -> list[int]:
    return [int(place.split()[0].rpartition(":")[2]) for place in report.examples.get(reason, [])]


def places(report: Prepared, split: str) -> list[str]:
    return list(load(Path(report.folder), split)["row"])


@pytest.mark.parametrize("name", EXPECTED)
def test_case(name: str, tokenizer: PreTrainedTokenizerFast, cache: Path) -> None:
    case = EXPECTED[name]
    options = case.get("options", {})
    if case["verdict"] == "refuse":
        with pytest.raises(ConfigError) as caught:
            go(DATA / name, tokenizer, cache, **options)
        assert all(text in str(caught.value) for text in case.get("must_name", [])), caught.value
        options = {**options, "max_bad_fraction": 1.0}
        if "kept" not in case:
            with pytest.raises(ConfigError):
                go(DATA / name, tokenizer, cache, **options)
            return
    report = go(DATA / name, tokenizer, cache, **options)
    assert (report.rows, report.kept) == (case["rows"], case["kept"]), report
    for reason, lines in case.get("dropped", {}).items():
        assert report.dropped[reason] == len(lines) and numbers(report, reason) == lines
    assert sum(report.dropped.values()) == case["rows"] - case["kept"]
    assert {reason: numbers(report, reason) for reason in report.repaired} == case.get("repaired", {})
    assert report.formats == case.get("formats", report.formats)
    assert numbers(report, "part_truncated") == case.get("part_truncated", [])
    assert load(Path(report.folder), "train").column_names == ["input_ids", "labels", "row"]
    assert len(places(report, "train") + places(report, "eval")) == report.kept == report.train_rows + report.eval_rows


def test_details_of_cases(tokenizer: PreTrainedTokenizerFast, cache: Path) -> None:
    assert go(DATA / "think.jsonl", tokenizer, cache).think_blocks == 3
    assert go(DATA / "utf16_bom.jsonl", tokenizer, cache).encodings == {"utf16_bom.jsonl": "utf-16"}
    assert go(DATA / "answer_part_cut.jsonl", tokenizer, cache, max_length=64).rows_without_end == 1
    mapped = go(DATA / "sharegpt_unknown_role.jsonl", tokenizer, cache, role_map={"moderator": "system"})
    assert mapped.kept == 3
    named = go(DATA / "no_known_columns.jsonl", tokenizer, cache, columns={"title": "prompt", "body": "completion"})
    assert named.formats == {"prompt_completion": 1}
    with pytest.raises(ConfigError, match="image"):
        path = cache.parent / "image.jsonl"
        part = {"type": "image", "url": "x"}
        path.write_text(json.dumps({"messages": [{"role": "user", "content": [part]}]}))
        go(path, tokenizer, cache)


def test_report_and_columns(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, cache: Path) -> None:
    report = go(write(tmp_path / "a.jsonl", pairs(40)), tokenizer, cache, eval_fraction=0.25)
    both = datasets.concatenate_datasets([load(Path(report.folder), split) for split in ("train", "eval")])
    assert report.tokens == sum(map(len, both["input_ids"])) and report.longest == max(map(len, both["input_ids"]))
    assert report.trained_tokens == sum(label != -100 for row in both["labels"] for label in row)
    assert both.features["input_ids"] == datasets.List(datasets.Value("int32"))
    assert json.loads((Path(report.folder) / "report.json").read_text()) == asdict(report)
    train = places(report, "train")
    assert train == sorted(train, key=lambda place: int(place.rpartition(":")[2]))


def test_split_goes_by_content(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, cache: Path) -> None:
    def held(items: list[tuple[str, str]], fraction: float = 0.2) -> set[tuple[int, ...]]:
        report = go(write(tmp_path / "a.jsonl", items), tokenizer, cache, eval_fraction=fraction)
        assert report.eval_rows + report.train_rows == report.kept == len(set(items))
        assert report.train_rows > 0
        return {tuple(ids) for ids in load(Path(report.folder), "eval")["input_ids"]}

    few, many = held(pairs(100)), held(pairs(200) + pairs(50))
    assert 5 < len(few) < 40 and few < many
    assert held(pairs(100)[::-1]) == few
    again = write(tmp_path / "a.jsonl", pairs(3))
    again.write_text(again.read_text() + again.read_text().replace("}", ', "id": 1}'))
    report = go(again, tokenizer, cache, eval_fraction=1e-9)
    assert (report.train_rows, report.eval_rows) == (4, 2)  # equal conversations stay together
    assert not held(pairs(10), 0.0)
    assert len(held(pairs(2), 1e-9)) == 1 and len(held(pairs(2), 1.0)) == 1 and not held(pairs(1), 0.5)


def test_prepared_once(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.jsonl", pairs(5))
    first = go(path, tokenizer, cache)
    other_chars = go(path, tokenizer, cache, max_length=64).fingerprint
    monkeypatch.setattr(dataset, "_fill", lambda *_: pytest.fail("worked again"))
    assert go(path, tokenizer, cache, num_proc=2, name="x") == first
    path.touch()
    assert go(path, tokenizer, cache) == first
    monkeypatch.undo()
    changed = write(tmp_path / "a.jsonl", pairs(6))
    other_template = PreTrainedTokenizerFast.from_pretrained(ASSETS)
    other_template.chat_template = f"{{# other #}}{other_template.chat_template}"
    prints = [go(changed, tokenizer, cache).fingerprint, go(changed, other_template, cache).fingerprint]
    assert len({first.fingerprint, other_chars, *prints}) == 4
    assert sorted(file.name for file in cache.iterdir()) == sorted({first.fingerprint, other_chars, *prints})


def test_refused_data_leaves_nothing(tokenizer: PreTrainedTokenizerFast, cache: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.max_bad_fraction"):
        go(DATA / "cut_off.jsonl", tokenizer, cache)
    assert list(cache.iterdir()) == []


def test_two_preparers_at_once(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path / "a.jsonl", pairs(50))
    first = go(path, tokenizer, cache)

    # The other one has published between our look and our rename.
    staging = cache / ".late"
    staging.mkdir()
    (staging / "report.json").write_text("{}")
    dataset._publish(staging, Path(first.folder))
    assert go(path, tokenizer, cache) == first
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=go, args=(path, tokenizer, cache / "x")) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert [file.name for file in (cache / "x").iterdir()] == [first.fingerprint]


def test_processes_give_the_same_rows(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "_CHUNK", 7)
    path = write(tmp_path / "a.jsonl", [*pairs(60), ("only asked", "")])
    one = go(path, tokenizer, cache / "1", max_bad_fraction=0.1)
    two = go(path, tokenizer, cache / "2", max_bad_fraction=0.1, num_proc=2)
    assert {**asdict(one), "folder": ""} == {**asdict(two), "folder": ""}
    for split in ("train", "eval"):
        assert load(Path(one.folder), split).to_list() == load(Path(two.folder), split).to_list()


def test_folder_and_limit(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    write(tmp_path / "in" / "a.jsonl", pairs(3))
    write(tmp_path / "in" / "sub" / "a.jsonl", pairs(3, start=3))
    report = go(tmp_path / "in", tokenizer, cache, limit=5, eval_fraction=0)
    assert places(report, "train") == [
        f"{name}:{at}" for name, at in [("a.jsonl", 1), ("a.jsonl", 2), ("a.jsonl", 3)]
    ] + [
        "sub/a.jsonl:1",
        "sub/a.jsonl:2",
    ]


def test_no_end_of_turn_is_refused(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path / "a.jsonl", [("q", "word " * 100)])
    with pytest.raises(ConfigError, match=r"dataset\.max_length=32"):
        go(path, tokenizer, cache, max_length=32)
    stopless = PreTrainedTokenizerFast.from_pretrained(ASSETS)
    stopless.chat_template = str(stopless.chat_template).replace("<|im_end|>", "")
    with pytest.raises(ConfigError, match="learn to stop"):
        go(path, stopless, cache)


def test_template_problem_names_the_row(tokenizer: PreTrainedTokenizerFast, cache: Path) -> None:
    stripping = PreTrainedTokenizerFast.from_pretrained(ASSETS)
    stripping.chat_template = (HERE / "templates" / "strips_reasoning.jinja").read_text()
    with pytest.raises(ConfigError, match=r"think\.jsonl:1: .*model\.chat_template"):
        go(DATA / "think.jsonl", stripping, cache)


def test_names_are_checked(tokenizer: PreTrainedTokenizerFast, cache: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(Dataset(role_map={"x": "boss"}, columns={"y": "z"}), tokenizer, cache=cache, seed=0)
    assert len(caught.value.problems) == 3


def test_hub(tokenizer: PreTrainedTokenizerFast, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fake(*args: Any, **options: Any) -> datasets.Dataset:
        asked.append((args, options))
        return datasets.Dataset.from_list([{"question": question, "answer": answer} for question, answer in pairs(3)])

    monkeypatch.setattr(datasets, "load_dataset", fake)
    config = Dataset(kind=DatasetKind.hub, path="org/name", config="0625", revision="main", eval_fraction=0)
    report = prepare(config, tokenizer, cache=cache, seed=0)
    assert places(report, "train") == ["org/name:1", "org/name:2", "org/name:3"]
    assert asked == [(("org/name", "0625"), {"split": "train", "revision": "main"})]

    def offline(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach 'org/name' on the Hub\nlong story")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(ConfigError, match=r"dataset\.path=org/name cannot be loaded .* on the Hub\): check"):
        prepare(config, tokenizer, cache=cache, seed=0)


def damaged(dice: random.Random) -> str:
    """One line: a good row, mostly harmed in one of many ways."""
    text = dice.choice(
        ["hi", "你好", "🌊", "", "  ", "<|im_end|>", "<think>a</think>b", "\\ud83d", "a\\u0000b", "x" * 300]
    )
    role = dice.choice(["user", "human", "assistant", "gpt", "tool", "system", "moderator", "A B", ""])
    broken: list[Any] = [None, 7, 1e400, True, [], {}, [text], {"a": [text]}, [{"type": "text", "text": text}], text]
    odd = dice.choice(broken)
    turns = [{"role": "user", "content": f"{dice.random()}"}, {"role": "assistant", "content": text or "fine"}]
    call = {"function": {"name": dice.choice(["f", None]), "arguments": odd}}
    turns.insert(
        dice.randrange(3), {"role": role, "content": dice.choice([text, odd]), "tool_calls": dice.choice([[call], odd])}
    )
    row: dict[str, Any] = dice.choice(
        [
            {"messages": turns},
            {"messages": odd},
            {"messages": json.dumps(turns)[: dice.randrange(200)]},
            {"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": odd}]},
            {"conversations": [{"from": "function_call", "value": odd}, odd]},
            {"instruction": odd, "input": dice.choice([odd, text]), "output": text},
            {"query": text, "response": f"{dice.random()}", "history": dice.choice([odd, [[text, text]]])},
            {"prompt": text, "completion": odd, "system": odd},
            {"text": odd},
            {"messages": turns, "tools": odd, "system": odd},
            {"odd": odd},
        ]
    )
    line = json.dumps(row, ensure_ascii=dice.random() < 0.5).replace("\\\\u", "\\u")
    cut = dice.randrange(len(line))
    return dice.choice([line, line, line, line[:cut], line[:cut] + dice.choice('"{}[],\\') + line[cut:]])


def test_damaged_rows_never_end_in_a_traceback(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, cache: Path) -> None:
    dice = random.Random(7)
    lines = [damaged(dice) for _ in range(2000)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    report = go(path, tokenizer, cache, max_bad_fraction=1.0)
    assert report.rows == sum(bool(line.strip()) for line in lines)
    assert report.kept + sum(report.dropped.values()) == report.rows
    assert report.kept > 100 and len(report.dropped) >= 6, report
