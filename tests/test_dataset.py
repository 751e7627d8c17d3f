"""Preparing data: the verdict on every case, the report, the split."""

import ast
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import datasets
import pytest

from preparing import DATA, go, numbers, pairs, places, write
from sft_exp import dataset
from sft_exp.dataset import load
from sft_exp.errors import ConfigError

EXPECTED: dict[str, dict[str, Any]] = json.loads((DATA / "expected.json").read_text())


@pytest.mark.parametrize("name", EXPECTED)
def test_case(name: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    case = EXPECTED[name]
    options = case.get("options", {})
    if case["verdict"] == "refuse":
        with pytest.raises(ConfigError) as caught:
            go(DATA / name, cache, **options)
        assert all(text in str(caught.value) for text in case.get("must_name", [])), caught.value
        assert all(problem.endswith(".") for problem in caught.value.problems), caught.value
        options = {**options, "max_bad_fraction": 1.0}
        if "kept" not in case:
            with pytest.raises(ConfigError):
                go(DATA / name, cache, **options)
            return
    report = go(DATA / name, cache, **options)
    assert (report.rows, report.kept) == (case["rows"], case["kept"]), report
    for reason, lines in case.get("dropped", {}).items():
        assert report.dropped[reason] == len(lines) and numbers(report, reason) == lines
    assert sum(report.dropped.values()) == case["rows"] - case["kept"]
    assert {reason: numbers(report, reason) for reason in report.repaired} == case.get("repaired", {})
    assert report.formats == case.get("formats", report.formats)
    assert numbers(report, "part_truncated") == case.get("part_truncated", [])
    assert load(Path(report.folder), "train").column_names == ["input_ids", "labels", "row"]
    assert len(places(report, "train") + places(report, "eval")) == report.kept == report.train_rows + report.eval_rows


def test_details_of_cases(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert go(DATA / "think.jsonl", cache).think_blocks == 3
    assert go(DATA / "utf16_bom.jsonl", cache).encodings == {"utf16_bom.jsonl": "utf-16"}
    assert go(DATA / "answer_part_cut.jsonl", cache, max_length=64).rows_without_end == 1
    mapped = go(DATA / "sharegpt_unknown_role.jsonl", cache, role_map={"moderator": "system"})
    assert mapped.kept == 3
    named = go(DATA / "no_known_columns.jsonl", cache, columns={"title": "prompt", "body": "completion"})
    assert named.formats == {"prompt_completion": 1}
    with pytest.raises(ConfigError, match="image"):
        path = tmp_path / "image.jsonl"
        part = {"type": "image", "url": "x"}
        path.write_text(json.dumps({"messages": [{"role": "user", "content": [part]}]}))
        go(path, cache)


def test_report_and_columns(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    report = go(write(tmp_path / "a.jsonl", pairs(40)), cache, eval_fraction=0.25)
    both = datasets.concatenate_datasets([load(Path(report.folder), split) for split in ("train", "eval")])
    assert report.tokens == sum(map(len, both["input_ids"])) and report.longest == max(map(len, both["input_ids"]))
    assert report.trained_tokens == sum(label != -100 for row in both["labels"] for label in row)
    assert both.features["input_ids"] == datasets.List(datasets.Value("int32"))
    assert json.loads((Path(report.folder) / "report.json").read_text()) == asdict(report)
    train = places(report, "train")
    assert train == sorted(train, key=lambda place: int(place.rpartition(":")[2]))


def test_split_goes_by_content(tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def held(items: list[tuple[str, str]], fraction: float = 0.2) -> set[tuple[int, ...]]:
        report = go(write(tmp_path / "a.jsonl", items), cache, eval_fraction=fraction)
        assert report.eval_rows + report.train_rows == report.kept == len(set(items))
        assert report.train_rows > 0
        return {tuple(ids) for ids in load(Path(report.folder), "eval")["input_ids"]}

    few, many = held(pairs(100)), held(pairs(200) + pairs(50))
    assert 5 < len(few) < 40 and few < many
    assert held(pairs(100)[::-1]) == few
    again = write(tmp_path / "a.jsonl", pairs(3))
    again.write_text(again.read_text() + again.read_text().replace("}", ', "id": 1}'))
    report = go(again, cache, eval_fraction=1e-9)
    assert (report.train_rows, report.eval_rows) == (4, 2)  # equal conversations stay together
    assert not held(pairs(10), 0.0)
    assert len(held(pairs(2), 1e-9)) == 1 and len(held(pairs(2), 1.0)) == 1 and not held(pairs(1), 0.5)


def test_every_module_of_preparing_decides_the_fingerprint() -> None:
    folder, seen, waiting = Path(dataset.__file__).parent, set[str](), ["dataset"]
    while waiting:
        seen.add(name := waiting.pop())
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sft_exp"):
                found = [node.module.removeprefix("sft_exp.")] if "." in node.module else [n.name for n in node.names]
                waiting += set(found) - seen - {"errors", "schema"}
    assert seen == set(dataset.DECIDING)
