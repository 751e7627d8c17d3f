"""A saved folder that is not what it should be is found, and so are rows that have not moved."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sft_exp import movement, reopen
from sft_exp.adapter import lora_config
from sft_exp.model import add_token_rows
from sft_exp.schema import AdapterKind
from sft_exp.tokenizer import load_tokenizer, new_tokens
from test_adapter import IDS, TOKENS, lora
from test_model import build, tiny


@pytest.mark.parametrize("tied", [True, False])
def test_a_whole_folder(tmp_path: Path, tied: bool) -> None:
    network = build(tiny(tied=tied))
    network.save_pretrained(tmp_path)
    found = reopen.weights(tmp_path, reopen.expected(network, None))
    assert (found.problems, found.not_finite) == ([], [])
    assert found.tensors == len(network.state_dict()) - tied


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda t: t.pop("model.norm.weight"), r"lacks 1 of \d+ weights, model.norm.weight first"),
        (lambda t: t["model.norm.weight"].add_(1e-6), "model.norm.weight has other values"),
        (lambda t: t.update({"model.norm.weight": t["model.norm.weight"].half()}), r"float16 of shape .*float32"),
        (lambda t: t.update({"model.norm.weight": t["model.norm.weight"][:3].clone()}), r"\(3,\) and .* \(128,\)"),
        (lambda t: t.update({"other": torch.ones(1)}), "other is none of the model's"),
    ],
)
def test_a_damaged_folder(tmp_path: Path, damage: Any, sentence: str) -> None:
    network = build(tiny())
    network.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    damage(tensors)
    save_file(tensors, file)
    [problem] = reopen.weights(tmp_path, reopen.expected(network, None)).problems
    assert re.search(sentence, problem)


def test_nan_is_no_difference_but_not_finite(tmp_path: Path) -> None:
    network = build(tiny())
    with torch.no_grad():
        network.model.norm.weight[3] = float("nan")
    network.save_pretrained(tmp_path)
    found = reopen.weights(tmp_path, reopen.expected(network, None))
    assert (found.problems, found.not_finite) == ([], ["model.norm.weight"])


def test_the_tokenizer_is_compared(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny(special_tokens=TOKENS))
    tokenizer.save_pretrained(tmp_path)
    assert list(reopen.tokens(tmp_path, tokenizer, TOKENS)) == []
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.chat_template += " "
    found = list(reopen.tokens(tmp_path, tokenizer, TOKENS))
    parts = [sentence.split(" another ")[1].split(" than")[0] for sentence in found]
    assert parts == ["chat template", "special tokens", "end token"]
    load_tokenizer(tiny()).save_pretrained(tmp_path)
    assert "vocabulary" in next(reopen.tokens(tmp_path, tokenizer, TOKENS))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_movement_is_that_of_the_row_that_moved_least(tied: bool, wrapped: bool) -> None:
    from peft import get_peft_model

    model = tiny(tied=tied, special_tokens=TOKENS)
    network = build(model)
    add_token_rows(network, load_tokenizer(model), new_tokens(model))
    before = movement.rows(network, IDS)
    assert len(before) == (1 if tied else 2) and before[0].shape == (2, 128)
    if wrapped:
        network = get_peft_model(network, lora_config(lora(AdapterKind.lora), network, IDS))
    assert movement.moved(before, movement.rows(network, IDS)) == 0
    rows = [parameter for name, parameter in network.named_parameters() if "trainable_tokens_delta" in name]
    assert len(rows) == (len(before) if wrapped else 0)
    with torch.no_grad():
        for matrix in rows:
            matrix.mul_(torch.tensor([[1.5], [1.25]]))
        for matrix in [] if wrapped else {network.get_input_embeddings().weight, network.lm_head.weight}:
            matrix[IDS] *= torch.tensor([[1.5], [1.25]])
    assert movement.moved(before, movement.rows(network, IDS)) == pytest.approx(0.25)
    if not tied:
        with torch.no_grad():  # one side alone does not count
            (rows[1][1] if wrapped else network.lm_head.weight[IDS[1]]).copy_(before[1][1])
        assert movement.moved(before, movement.rows(network, IDS)) == pytest.approx(0)
