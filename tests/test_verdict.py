"""Data that must not be trained, each with its own sentence."""

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from preparing import accepted, go, pairs, shipped, write
from sft_exp import verdict
from sft_exp.errors import ConfigError
from sft_exp.prepared import Prepared
from sft_exp.schema import Dataset, Loss, Train


def report(**numbers: object) -> Prepared:
    base = {"rows": 100, "kept": 100, "chats": 100, "ends_inside": 100, "eval_rows": 5, "end_token": 7}
    return Prepared(fingerprint="", folder="", source="a.jsonl", max_length=64, **{**base, **numbers})  # type: ignore[arg-type]


def problems(found: Prepared, train: Train | None = None, **fields: object) -> list[str]:
    return verdict.problems(found, Dataset(**fields), train or Train())  # type: ignore[arg-type]


def test_good_data_is_not_refused() -> None:
    assert problems(report()) == []
    assert problems(report(ends_missing=1)) == []  # 99 % are enough
    assert problems(report(kept=99, dropped={"empty_content": 1}, examples={"empty_content": ["a.jsonl:1"]})) == []


def test_end_tokens() -> None:
    assert "only 98 of 100 rows" in problems(report(ends_missing=2))[0]
    assert "no single token" in problems(report(ends_missing=2, end_token=None, end_text="</turn>"))[0]
    cut = problems(report(ends_inside=0, chats_without_end=100, rows_without_end=100))
    assert cut == [
        "dataset.max_length=64 cuts off the end of every answer in a.jsonl, so the model would not learn to stop: "
        "raise it."
    ]


def test_conversations_that_would_be_trained_whole() -> None:
    whole = report(multi_turn_chats=3, fully_trained_chats=1)
    assert "1 of 3 conversations of several turns" in problems(whole)[0]
    assert problems(whole, loss=Loss.all) == []


def test_bad_rows_name_the_least_fraction_that_accepts_them() -> None:
    bad = report(kept=95, dropped={"empty_content": 5}, examples={"empty_content": ["a.jsonl:1", "a.jsonl:4"]})
    first, second = problems(bad)
    assert "5 of 100" in first and "to 0.051" in first
    assert second == "  empty_content: 5 rows, first a.jsonl:1; a.jsonl:4."
    assert problems(bad, max_bad_fraction=0.051) == []


@pytest.mark.parametrize("key", ["eval_steps", "early_stopping", "load_best"])
def test_evaluation_needs_rows(key: str) -> None:
    train = Train(**{key: 1})  # type: ignore[arg-type]
    assert key in problems(report(eval_rows=0), train)[0]
    assert problems(report(), train) == []


def test_a_template_that_drops_the_questions_is_refused(tmp_path: Path) -> None:
    silent = PreTrainedTokenizerFast.from_pretrained(shipped().name_or_path)
    silent.chat_template = "{% for m in messages if m.role == 'assistant' %}{{ m.content + '<|im_end|>' }}{% endfor %}"
    path = write(tmp_path / "a.jsonl", pairs(5))
    with pytest.raises(ConfigError):
        accepted(Dataset(path=str(path), max_bad_fraction=1.0), tmp_path / "cache", silent)


def test_one_conversation_trains_without_evaluation(tmp_path: Path) -> None:
    assert go(write(tmp_path / "a.jsonl", pairs(1)), tmp_path / "cache").eval_rows == 0
