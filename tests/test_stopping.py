"""A model that would not stop: the place that is wrong is named, and only that one."""

import json
from pathlib import Path
from typing import Any

import pytest

from sft_exp import stopping
from sft_exp.model import align_end_token
from sft_exp.saving import make_portable
from sft_exp.tokenizer import load_tokenizer
from test_model import build, tiny

GOOD = {"end_token": 2050, "end_text": "<|im_end|>", "kept": 10, "rows_without_end": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A base model that was saved as a run saves it."""
    network, tokenizer = build(tiny()), load_tokenizer(tiny())
    network.config.eos_token_id = network.generation_config.eos_token_id = 2048
    tokenizer.eos_token = "<|endoftext|>"
    align_end_token(network, tokenizer, 2050)
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    make_portable(tmp_path)
    return tmp_path


def test_a_base_model_comes_out_as_one_that_stops(folder: Path) -> None:
    assert list(stopping.problems(GOOD, folder)) == []
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2050, 2048]


def edit(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


@pytest.mark.parametrize(
    ("where", "fields"),
    [
        ("generation_config.json", {"eos_token_id": 2048}),
        ("generation_config.json", {"eos_token_id": None}),
        ("config.json", {"eos_token_id": 2048}),
        ("tokenizer_config.json", {"eos_token": "<|endoftext|>"}),
    ],
)
def test_the_wrong_file_is_named(folder: Path, where: str, fields: dict[str, Any]) -> None:
    edit(folder / where, **fields)
    [sentence] = stopping.problems(GOOD, folder)
    assert sentence.startswith(where.removesuffix("_config.json") if "tokenizer" in where else where)
    assert "'<|im_end|>', id 2050" in sentence


def test_labels_without_the_end(folder: Path) -> None:
    [sentence] = stopping.problems({**GOOD, "rows_without_end": 10}, folder)
    assert sentence.startswith("labels: no row trains the end token '<|im_end|>'")


def test_an_adapter_has_no_config_and_plain_text_no_end(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert list(stopping.problems(GOOD, folder)) == []
    (folder / "generation_config.json").unlink()
    [sentence] = stopping.problems(GOOD, folder)
    assert "not set" in sentence
    assert list(stopping.problems({**GOOD, "end_token": None}, folder)) == []
