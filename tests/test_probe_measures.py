"""Ends, languages, think blocks and added tokens of answers, against examples made by hand."""

import json
from collections import Counter
from pathlib import Path

import pytest

from sft_exp.errors import ConfigError
from sft_exp.probes import languages, prompts, thinking
from sft_exp.probes.answers import Answer
from sft_exp.probes.measures import Setting, measure
from sft_exp.probes.prompts import Prompt

PROMPTS = [
    Prompt("a", "Why?", "en"),
    Prompt("b", "为什么？", "zh"),
    Prompt("c", "1 + 1?", None),
    Prompt("d", "Hi", "en"),
]
ENGLISH = "The sky is blue because the air scatters the blue part of the light."
CHINESE = "天空是蓝色的，因为空气把阳光里的蓝色光散射到四面八方，所以我们看到蓝天。"


def said(text: str, ids: list[int], ended: bool = True) -> Answer:
    return Answer(ids, ended, text)


def test_measures_of_four_answers() -> None:
    answers = [
        said(ENGLISH, [1, 2, 3, 4, 5]),
        said(ENGLISH, [1, 2, 1, 2, 1, 2], ended=False),
        said("2", [9]),
        said("", []),
    ]
    found = measure(PROMPTS, answers, Setting())
    assert found["probe/ended"] == 0.75
    assert found["probe/empty"] == 0.25
    assert found["probe/tokens"] == 3.0
    assert found["probe/repeated_4grams"] == pytest.approx(1 / 12)
    assert found["probe/distinct_2"] == pytest.approx(5 / 9)  # 12 23 34 45 | 12 21 12 21 12
    assert found["probe/longest_repeat"] == 1.0  # 4 in one of four answers
    assert found["probe/script_kept"] == found["probe/language_kept"] == 0.5  # the short and the empty are not judged
    assert found["probe/thinks"] == found["probe/think_malformed"] == 0.0
    assert "probe/added_tokens" not in found


def test_scripts_and_languages() -> None:
    assert languages.script_kept(CHINESE, "zh") and not languages.script_kept(ENGLISH, "zh")
    assert languages.script_kept("これはひらがなとカタカナと漢字で書かれた文章です。", "ja")
    assert languages.script_kept("yes", "en") is None and languages.script_kept(ENGLISH, "xx") is None
    candidates = {"en", "de", "fr", "zh"}
    assert languages.language_kept(ENGLISH, "en", candidates) and not languages.language_kept(ENGLISH, "de", candidates)
    assert languages.language_kept("Der Himmel ist blau, weil die Luft das blaue Licht streut.", "de", candidates)


@pytest.mark.parametrize(
    ("answer", "prompted", "ended", "state"),
    [
        ("Four.", False, True, "none"),
        ("<think>two and two</think>\nFour.", False, True, "ok"),
        ("<think>\n\n</think>\n\nFour.", False, True, "empty"),
        ("<think>two and", False, False, "unclosed"),
        ("<think>two and", False, True, "malformed"),
        ("Four. <think>two</think>", False, True, "malformed"),
        ("<think>a</think><think>b</think>", False, True, "malformed"),
        ("two and two</think>\nFour.", True, True, "ok"),
        ("<think>two and two</think>\nFour.", True, True, "ok"),
        ("Four.", True, True, "none"),  # answered at once, though it was asked to think
        ("two and", True, False, "unclosed"),
        ("two and two</think>\nFour.", False, True, "malformed"),
    ],
)
def test_think_blocks(answer: str, prompted: bool, ended: bool, state: str) -> None:
    assert thinking.state(answer, prompted=prompted, ended=ended) == state


@pytest.mark.parametrize(
    ("answer", "ended", "formed"),
    [
        ("<a>x</a> <a>y</a>", True, True),
        ("<a><b>x</b></a>", True, True),
        ("<a><b>x</a></b>", True, False),
        ("x</a>", True, False),
        ("<a>x", True, False),
        ("<a>x", False, True),  # cut off
        ("<s> alone <s>", True, True),
    ],
)
def test_pairs_of_added_tokens(answer: str, ended: bool, formed: bool) -> None:
    assert thinking.well_formed(answer, ["<a>", "</a>", "<b>", "</b>", "<s>"], ended=ended) is formed


def test_use_of_added_tokens() -> None:
    answers = [said("<a>x</a>", [1]), said("<a>x", [1]), said("x", [1]), said("x", [1])]
    found = measure(PROMPTS, answers, Setting(("<a>", "</a>")))
    assert (found["probe/added_tokens"], found["probe/added_tokens_well_formed"]) == (0.5, 0.5)


def test_shipped_prompts_are_of_many_kinds() -> None:
    rows = [json.loads(line) for line in prompts.SHIPPED.read_text(encoding="utf-8").splitlines()]
    found = prompts.load(None, None)
    assert len(found) == len({prompt.text for prompt in found}) == len({prompt.id for prompt in found}) == 64
    assert set(languages.SCRIPTS) >= {row["language"] for row in rows} - {None}
    assert Counter(row["language"] for row in rows)["en"] < 32
    assert len({row["language"] for row in rows}) >= 9 and len({row["kind"] for row in rows}) >= 8
    few = prompts.load(None, 16)
    assert len({prompt.language for prompt in few}) >= 6
    assert len(prompts.general_texts()) == 20


def test_own_prompts(tmp_path: Path) -> None:
    lines = tmp_path / "p.txt"
    lines.write_text("Why is the sky blue in the evening?\n\n7 * 6 =\n", encoding="utf-8")
    assert [(each.id, each.language) for each in prompts.load(str(lines), None)] == [("line-1", "en"), ("line-2", None)]
    rows = tmp_path / "p.jsonl"
    rows.write_text('{"prompt": "Say it in French.", "language": "fr", "id": "x"}\n', encoding="utf-8")
    assert prompts.load(str(rows), 5) == [Prompt("x", "Say it in French.", "fr")]
    rows.write_text('{"prompt": "Hi"}\n{"text": "Hi"}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="no prompt in line 2"):
        prompts.load(str(rows), None)
    rows.write_text("")
    with pytest.raises(ConfigError, match="has no prompt"):
        prompts.load(str(rows), None)
