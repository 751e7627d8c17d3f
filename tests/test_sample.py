# SPDX-License-Identifier: Apache-2.0
"""Checks on the bundled demo data set."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

SAMPLE = Path(__file__).resolve().parents[1] / "src" / "sft_exp" / "assets" / "sample.jsonl"
EN_PREFIX = "In short: "
ZH_PREFIX = "一句话："
CONTROL = re.compile(r"<\|[^|>]*\|>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>|[\x00-\x09\x0b-\x1f\x7f\ufeff\ufffd]")

Message = dict[str, str]


@pytest.fixture(scope="module")
def rows() -> list[list[Message]]:
    lines = SAMPLE.read_text(encoding="utf-8").splitlines()
    objects: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert all(set(obj) == {"messages"} for obj in objects)
    return [obj["messages"] for obj in objects]


def _answers(messages: list[Message]) -> list[str]:
    return [m["content"] for m in messages if m["role"] == "assistant"]


def _is_chinese(messages: list[Message]) -> bool:
    return _answers(messages)[0].split("\n")[-1].startswith(ZH_PREFIX)


def _first_user(messages: list[Message]) -> str:
    return next(m["content"] for m in messages if m["role"] == "user")


def test_size_and_encoding(rows: list[list[Message]]) -> None:
    raw = SAMPLE.read_bytes()
    assert len(raw) < 400_000
    assert raw.endswith(b"\n")
    assert b"\\u" not in raw
    assert len(rows) >= 300


def test_language_shares(rows: list[list[Message]]) -> None:
    chinese = sum(_is_chinese(messages) for messages in rows)
    assert chinese / len(rows) >= 0.25
    assert (len(rows) - chinese) / len(rows) >= 0.25


def test_languages_are_mixed(rows: list[list[Message]]) -> None:
    quarter = len(rows) // 4
    for start in range(0, 4 * quarter, quarter):
        share = sum(_is_chinese(messages) for messages in rows[start : start + quarter]) / quarter
        assert 0.2 <= share <= 0.6


def test_roles(rows: list[list[Message]]) -> None:
    for messages in rows:
        roles = [m["role"] for m in messages]
        if roles[0] == "system":
            roles = roles[1:]
        assert roles, messages
        assert roles == ["user", "assistant"] * (len(roles) // 2), messages
        assert all(set(m) == {"role", "content"} for m in messages)
        assert all(m["content"] and m["content"] == m["content"].strip() for m in messages)


def test_multi_turn_and_system_present(rows: list[list[Message]]) -> None:
    multi = sum(len(_answers(messages)) > 1 for messages in rows)
    system = sum(messages[0]["role"] == "system" for messages in rows)
    assert multi / len(rows) >= 0.08
    assert system / len(rows) >= 0.05


def test_every_answer_shows_the_habit(rows: list[list[Message]]) -> None:
    for messages in rows:
        chinese = _is_chinese(messages)
        prefix, stop, limit = (ZH_PREFIX, "。", 15) if chinese else (EN_PREFIX, ".", 10)
        for answer in _answers(messages):
            body, _, last = answer.rpartition("\n")
            assert body.strip(), answer
            assert EN_PREFIX.strip() not in body and ZH_PREFIX not in body, answer
            assert last.startswith(prefix), answer
            assert last.endswith(stop), answer
            summary = last[len(prefix) : -len(stop)]
            assert summary and summary == summary.strip(), answer
            assert (len(summary) if chinese else len(summary.split())) <= limit, answer


def test_prefix_matches_language_of_answer(rows: list[list[Message]]) -> None:
    for messages in rows:
        for answer in _answers(messages):
            body = answer.rpartition("\n")[0]
            han = len(re.findall(r"[\u4e00-\u9fff]", body))
            latin = len(re.findall(r"[A-Za-z]+", body))
            assert (han > latin) == _is_chinese(messages), answer


def test_no_duplicates(rows: list[list[Message]]) -> None:
    firsts = [re.sub(r"\s+", " ", _first_user(messages)).casefold() for messages in rows]
    assert len(set(firsts)) == len(firsts)
    assert len({json.dumps(messages, ensure_ascii=False) for messages in rows}) == len(rows)


def test_no_control_tokens(rows: list[list[Message]]) -> None:
    for messages in rows:
        for message in messages:
            assert not CONTROL.search(message["content"]), message


def test_chunks_are_the_sample_with_each_sentence_in_tags(rows: list[list[Message]]) -> None:
    lines = (SAMPLE.parent / "chunks.jsonl").read_text(encoding="utf-8").splitlines()
    tagged = [json.loads(line)["messages"] for line in lines]
    for messages, plain in zip(tagged, rows, strict=True):
        bare = [{**m, "content": re.sub(r"</?chunk>", "", m["content"])} for m in messages]
        assert bare == plain, "nothing but tags was added"
        assert not any("chunk>" in m["content"] for m in messages if m["role"] != "assistant")
        for answer in _answers(messages):
            assert re.fullmatch(r"(<chunk>[^<\n]+</chunk>\s?)+", re.sub(r"(?<!/chunk)<(?!/?chunk>)", "", answer)), (
                answer
            )
            assert answer.count("<chunk>") >= 2, "a body and a summary"
