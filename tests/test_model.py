"""Weights, token rows and end tokens of tiny random models."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sft_exp.adapter import quantization
from sft_exp.errors import ConfigError
from sft_exp.model import add_token_rows, align_end_token, load_model
from sft_exp.schema import Adapter, AdapterKind, Model, Shape, Weights
from sft_exp.tokenizer import load_tokenizer, new_tokens


def tiny(vocab: int = 2112, tied: bool = True, **fields: Any) -> Model:
    shape = Shape(
        model_type="qwen2",
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocab,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        rope_theta=500.0,
    )
    return Model(weights=Weights.random, shape=shape, **fields)


def build(model: Model, dtype: str = "float32", seed: int = 1) -> Any:
    return load_model(model, dtype=dtype, attention="sdpa", seed=seed)


def test_random_model_has_shape_ids_and_type() -> None:
    state = torch.random.get_rng_state()
    network = build(tiny(), "bfloat16")
    assert torch.equal(state, torch.random.get_rng_state())  # nothing else that is drawn is shifted
    assert network.num_parameters() == 566_400
    assert {parameter.dtype for parameter in network.parameters()} == {torch.bfloat16}
    config = network.config
    assert (config.rope_parameters["rope_theta"], config._attn_implementation) == (500.0, "sdpa")
    assert (config.eos_token_id, config.pad_token_id) == (2050, 2048)


def test_random_weights_follow_the_seed() -> None:
    first, again, other = (build(tiny(), seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_shapes_that_cannot_be_built() -> None:
    with pytest.raises(ConfigError, match=r"needs model.shape.model_type, model.shape.hidden_size"):
        build(Model(weights=Weights.random))
    with pytest.raises(ConfigError, match=r"vocab_size=2000 is less than the tokenizer's 2051 tokens: set it to 2112"):
        build(tiny(vocab=2000))


def test_pretrained_model_loads_in_the_given_type(tmp_path: Path) -> None:
    saved = build(tiny())
    saved.save_pretrained(tmp_path)
    loaded: Any = load_model(Model(path=str(tmp_path)), dtype="bfloat16", attention="eager", seed=0)
    assert (loaded.dtype, loaded.config._attn_implementation) == (torch.bfloat16, "eager")
    assert torch.equal(loaded.model.norm.weight, saved.model.norm.weight.bfloat16())


def test_model_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for path, sentence in (("no-such-owner/no-such-model", "HF_HUB_OFFLINE"), (str(tmp_path), "has no config.json")):
        with pytest.raises(ConfigError, match=sentence):
            load_model(Model(path=path), dtype="float32", attention="sdpa", seed=0)


def test_random_quantized_model() -> None:
    adapter = Adapter(kind=AdapterKind.qlora, quant_type="nf4", double_quant=True)
    network: Any = load_model(
        tiny(), dtype="float32", attention="sdpa", seed=1, quantization=quantization(adapter, "float32")
    )
    layer = network.model.layers[0].mlp.up_proj
    assert type(layer).__name__ == "Linear4bit" and layer.weight.dtype == torch.uint8
    assert network.lm_head.weight.dtype == torch.float32
    assert torch.equal(network.model.embed_tokens.weight, build(tiny()).model.embed_tokens.weight)


@pytest.mark.parametrize("tied", [True, False])
def test_new_rows_without_growth(tied: bool) -> None:
    model = tiny(tied=tied, special_tokens=["<chunk>", "</chunk>"])
    network, tokenizer = build(model), load_tokenizer(model)
    matrices = [network.get_input_embeddings().weight, network.get_output_embeddings().weight]
    before = [matrix.detach().clone() for matrix in matrices]
    add_token_rows(network, tokenizer, new_tokens(model))
    plain = load_tokenizer(tiny())
    for matrix, old in zip(matrices, before, strict=True):
        assert matrix.shape == (2112, 128)  # 2053 tokens: never shrunk
        changed = (matrix != old).any(dim=1).nonzero().flatten().tolist()
        assert changed == [2051, 2052]
        pieces = old[plain("<chunk>").input_ids]
        distance = (matrix[2051] - pieces.mean(dim=0)).std() / pieces.std()
        assert 0.07 < distance < 0.13
        assert not torch.allclose(matrix[2051], matrix[2052], atol=1e-3)
    assert torch.equal(matrices[0], matrices[1]) is tied


@pytest.mark.parametrize("tied", [True, False])
def test_growth_keeps_old_rows_and_is_a_multiple_of_64(tied: bool) -> None:
    model = tiny(vocab=2051, tied=tied, special_tokens=["<chunk>"])
    network, again, tokenizer = build(model), build(model), load_tokenizer(model)
    old = [network.get_input_embeddings().weight.clone(), network.get_output_embeddings().weight.clone()]
    add_token_rows(network, tokenizer, new_tokens(model))
    add_token_rows(again, tokenizer, new_tokens(model))
    new = [network.get_input_embeddings().weight, network.get_output_embeddings().weight]
    assert network.config.vocab_size == 2112
    for matrix, before in zip(new, old, strict=True):
        assert matrix.shape == (2112, 128) and torch.equal(matrix[:2051], before)
        torch.testing.assert_close(matrix[2052:], before.mean(dim=0).expand(60, 128))
    assert (new[0] is new[1]) is tied
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))


def test_rows_trained_before_are_kept(tmp_path: Path) -> None:
    model = tiny(special_tokens=["<chunk>"])
    network, tokenizer = build(model), load_tokenizer(model)
    with torch.no_grad():
        network.get_input_embeddings().weight[2051] = 3.0
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    second = Model(path=str(tmp_path), special_tokens=["<chunk>"])
    loaded: Any = load_model(second, dtype="float32", attention="sdpa", seed=0)
    add_token_rows(loaded, load_tokenizer(second), new_tokens(second))
    assert loaded.get_input_embeddings().weight[2051].eq(3.0).all()


def test_saved_model_stops_at_the_chat_end(tmp_path: Path) -> None:
    network, tokenizer = build(tiny()), load_tokenizer(tiny())
    network.config.eos_token_id = network.generation_config.eos_token_id = 2048  # as a base model
    network.config.pad_token_id = None
    tokenizer.eos_token = "<|endoftext|>"
    align_end_token(network, tokenizer, 2050)
    align_end_token(network, tokenizer, 2050)
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.generation_config.eos_token_id == [2050, 2048]
    assert (loaded.config.eos_token_id, loaded.config.pad_token_id) == (2050, 2048)
    assert loaded.generation_config.pad_token_id == 2048
    assert AutoTokenizer.from_pretrained(tmp_path).eos_token == "<|im_end|>"
    with torch.no_grad():  # a row this long drowns the layers, so <|im_end|> is answered with <|im_end|>
        loaded.get_input_embeddings().weight[2050] *= 1000
    answer = loaded.generate(torch.tensor([[2050]]), max_new_tokens=8, do_sample=False)
    assert answer.tolist() == [[2050, 2050]]
