"""What LoRA and QLoRA train, in which type, and what is left after merging."""

from pathlib import Path
from typing import Any

import bitsandbytes
import pytest
import torch
from datasets import Dataset
from peft import PeftModel
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

from sft_exp.adapter import keep_trainable_float32, keep_unpacked, linear_names, lora_config, quantization
from sft_exp.errors import ConfigError
from sft_exp.model import add_token_rows, load_model
from sft_exp.schema import Adapter, AdapterKind
from sft_exp.tokenizer import load_tokenizer, new_tokens
from test_model import build, tiny

TOKENS = ["<chunk>", "</chunk>"]
IDS = [2051, 2052]
LINEAR = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def lora(kind: AdapterKind = AdapterKind.lora, **fields: Any) -> Adapter:
    quant = {"quant_type": "nf4", "double_quant": True} if kind is AdapterKind.qlora else {}
    return Adapter(kind=kind, **{"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear", **quant, **fields})


def start(adapter: Adapter, folder: Path, *, dtype: str = "float32", tied: bool = True, rate: float = 1e-2) -> Any:
    """A trainer on four rows that hold the added tokens, ready for two steps."""
    model = tiny(tied=tied, special_tokens=TOKENS)
    network: Any = load_model(
        model, dtype=dtype, attention="sdpa", seed=1, quantization=quantization(adapter, "float32")
    )
    tokenizer = load_tokenizer(model)
    add_token_rows(network, tokenizer, new_tokens(model))
    ids = tokenizer("<chunk>The capital of France is Paris.</chunk><|im_end|>").input_ids
    rows = Dataset.from_dict({"input_ids": [ids] * 4, "labels": [ids] * 4})
    arguments = SFTConfig(
        output_dir=str(folder), max_steps=2, per_device_train_batch_size=2, learning_rate=rate, use_cpu=True,
        bf16=False, report_to="none", save_strategy="no", disable_tqdm=True, activation_checkpointing=False, seed=1,
        dataloader_pin_memory=False, warmup_steps=0, lr_scheduler_type="constant",
    )  # fmt: skip
    trainer: Any = SFTTrainer(
        model=network,
        args=arguments,
        train_dataset=rows,
        processing_class=tokenizer,
        peft_config=lora_config(adapter, network, IDS),
    )
    keep_trainable_float32(trainer.model)
    return trainer


def logits(network: Any) -> torch.Tensor:
    ids = torch.tensor([[2051, 84, 104, 101, 2052, 2050]])
    with torch.no_grad():
        result: torch.Tensor = network.eval()(ids).logits
    return result


@pytest.mark.parametrize("tied", [True, False])
def test_rows_of_added_tokens_train_and_survive_the_merge(tmp_path: Path, tied: bool) -> None:
    trainer = start(lora(), tmp_path, tied=tied)
    base = trainer.model.get_base_model()
    before = [base.get_input_embeddings().weight.clone(), base.get_output_embeddings().weight.clone()]
    trainer.train()
    trained = logits(trainer.model)
    trainer.model.save_pretrained(tmp_path / "adapter")
    merged = trainer.model.merge_and_unload()
    after = [merged.get_input_embeddings().weight, merged.get_output_embeddings().weight]
    for matrix, old in zip(after, before, strict=True):
        assert (matrix != old).any(dim=1).nonzero().flatten().tolist() == IDS
        assert (matrix[IDS] - old[IDS]).abs().mean() > 1e-3
    merged.save_pretrained(tmp_path / "merged")
    reloaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert reloaded.config.tie_word_embeddings is tied
    torch.testing.assert_close(logits(reloaded), trained, atol=1e-4, rtol=1e-4)

    fresh = build(tiny(tied=tied, special_tokens=TOKENS))
    again = PeftModel.from_pretrained(fresh, tmp_path / "adapter")
    torch.testing.assert_close(logits(again), trained, atol=1e-5, rtol=1e-5)


def test_loss_of_the_wrapped_head_is_the_loss_of_the_plain_model(tmp_path: Path) -> None:
    """The shim for the head without bias must not change what is computed: the first loss is the base model's."""
    trainer = start(lora(), tmp_path, rate=0.0)
    row = torch.tensor([trainer.train_dataset[0]["input_ids"]])
    with torch.no_grad():
        expected = trainer.model.eval()(input_ids=row, labels=row).loss
    assert trainer.train().training_loss == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.parametrize("kind", [AdapterKind.lora, AdapterKind.qlora])
def test_trained_parameters_are_float32_and_all_move(tmp_path: Path, kind: AdapterKind) -> None:
    trainer = start(lora(kind), tmp_path, dtype="bfloat16", rate=1e-5)
    trained = {name: p for name, p in trainer.model.named_parameters() if p.requires_grad}
    assert {parameter.dtype for parameter in trained.values()} == {torch.float32}
    assert len(trained) == 2 * 7 * 2 + 1  # two factors for seven layers in two blocks, and the token rows
    start_values = {name: parameter.detach().clone() for name, parameter in trained.items()}
    trainer.train()
    assert {parameter.dtype for parameter in trained.values()} == {torch.float32}
    for name, old in start_values.items():
        if "lora_A" not in name:  # lora_A has no gradient in the first step, because lora_B starts at zero
            assert (trained[name] != old).float().mean() > 0.95, name


def test_a_look_without_gradients_leaves_4bit_weights_trainable() -> None:
    """As a probe before the first step is; without the switch it fails on CPUs with AVX512-BF16."""
    layer = bitsandbytes.nn.Linear4bit(64, 64, bias=True, compute_dtype=torch.float32).to("cpu")
    keep_unpacked(torch.nn.Sequential(layer))
    row = torch.randn(1, 8, 64)
    with torch.no_grad():
        before = layer.eval()(row)
    asked = row.clone().requires_grad_()
    answer = layer.train()(asked)
    answer.sum().backward()
    assert torch.equal(answer, before) and asked.grad is not None and asked.grad.any()


def test_quantization() -> None:
    assert quantization(Adapter(), "bfloat16") is None
    assert quantization(lora(), "bfloat16") is None
    config: Any = quantization(lora(AdapterKind.qlora), "float16")
    assert (config.load_in_4bit, config.bnb_4bit_quant_type, config.bnb_4bit_use_double_quant) == (True, "nf4", True)
    assert config.bnb_4bit_compute_dtype is torch.float16


def test_lora_config_fields() -> None:
    network = build(tiny(tied=False))
    assert lora_config(Adapter(), network, IDS) is None
    config: Any = lora_config(lora(target_modules="q_proj, v_proj"), network, [])
    assert (config.r, config.lora_alpha, config.target_modules) == (4, 8, {"q_proj", "v_proj"})
    assert config.trainable_token_indices is None
    config = lora_config(lora(), network, IDS)
    assert config.trainable_token_indices == {"embed_tokens": IDS, "lm_head": IDS}
    config = lora_config(lora(), build(tiny()), IDS)
    assert config.trainable_token_indices == {"embed_tokens": IDS}


@pytest.mark.parametrize("name", ["qproj", "embed_tokens", "lm_head", "mlp"])
def test_bad_target_modules(name: str) -> None:
    network = build(tiny())
    assert linear_names(network) == LINEAR
    with pytest.raises(ConfigError, match=f"{name} is no linear layer of this model: .* {', '.join(LINEAR)}"):
        lora_config(lora(target_modules=f"q_proj,{name}"), network, [])


def test_head_with_bias_is_refused() -> None:
    network = build(tiny(tied=False))
    network.lm_head = torch.nn.Linear(128, 2112, bias=True)
    with pytest.raises(ConfigError, match="output head has a bias"):
        lora_config(lora(), network, IDS)
