"""Refusals name what the user has to change."""

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from chats import TEMPLATES
from preparing import DATA, go, write
from sft_exp.errors import ConfigError
from sft_exp.tokenizer import SHIPPED


def test_no_end_of_turn_is_refused(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    path = write(tmp_path / "a.jsonl", [("q", "word " * 100)])
    with pytest.raises(ConfigError, match=r"dataset\.max_length=32"):
        go(path, cache, max_length=32)
    stopless = PreTrainedTokenizerFast.from_pretrained(SHIPPED)
    stopless.chat_template = str(stopless.chat_template).replace("<|im_end|>", "")
    with pytest.raises(ConfigError, match="learn to stop"):
        go(path, cache, tokenizer=stopless)


def test_template_problem_names_the_row(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    stripping = PreTrainedTokenizerFast.from_pretrained(SHIPPED)
    stripping.chat_template = (TEMPLATES / "strips_reasoning.jinja").read_text()
    with pytest.raises(ConfigError, match=r"think\.jsonl:1: .*model\.chat_template"):
        go(DATA / "think.jsonl", cache, tokenizer=stripping)
