"""No conversation of a flat row sees another, in any implementation, and each computes what plain attention does."""

import copy
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

from sft_exp import varlen
from sft_exp.machine import look

gpu = [pytest.mark.gpu, pytest.mark.skipif(not look().usable(), reason="needs an NVIDIA GPU")]
PATHS = [
    pytest.param("sdpa", "cpu"),
    pytest.param("eager", "cpu"),
    *(pytest.param(kind, "cuda", marks=gpu) for kind in ("sdpa", "eager", "varlen", "flex_attention")),
]
LENGTHS = (37, 5, 64, 22)
SHAPE = {
    "vocab_size": 96, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 32,
}  # fmt: skip


@pytest.fixture(params=["grouped", "window"])
def network(request: pytest.FixtureRequest) -> Any:
    """Two layers with shared key heads; the second kind looks back 16 tokens only."""
    torch.manual_seed(0)
    shape: Any = SHAPE
    config = LlamaConfig(**shape) if request.param == "grouped" else MistralConfig(**shape, sliding_window=16)
    config._attn_implementation = "eager"
    return AutoModelForCausalLM.from_config(config).double()


def flat(device: str) -> dict[str, Any]:
    """What a collator without padding makes of four conversations."""
    ends = torch.tensor(LENGTHS).cumsum(0)
    starts = torch.cat([torch.zeros(1, dtype=torch.long), ends]).int().to(device)
    return {
        "position_ids": torch.cat([torch.arange(length) for length in LENGTHS])[None].to(device),
        "cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": max(LENGTHS), "max_length_k": max(LENGTHS),
    }  # fmt: skip


def placed(network: Any, kind: str, device: str) -> Any:
    """A copy with another attention, in bf16 on a card."""
    varlen.register()
    made = copy.deepcopy(network).to(device, torch.bfloat16 if device == "cuda" else torch.float32)
    made.set_attn_implementation(kind)
    return made


def embedded(network: Any, seed: int = 1) -> torch.Tensor:
    """Vectors of one flat row, shape (1, tokens, width), float64."""
    ids = torch.randint(0, 96, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(seed))
    return network.get_input_embeddings()(ids).detach()


def alone(network: Any, row: torch.Tensor, dtype: torch.dtype, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of each conversation by itself, and the gradient of their squares, by plain attention."""
    plain = copy.deepcopy(network).to(device, dtype)
    leaf = row.clone().to(device, dtype).requires_grad_()
    outputs = [plain(inputs_embeds=part, use_cache=False).logits for part in leaf.split(LENGTHS, dim=1)]
    logits = torch.cat(outputs, dim=1)
    logits.double().square().sum().backward()
    assert leaf.grad is not None
    return logits.detach().double().cpu(), leaf.grad.double().cpu()


def together(network: Any, kind: str, device: str, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of one flat row."""
    made = placed(network, kind, device)
    leaf = row.clone().to(device, made.dtype).requires_grad_()
    logits = made(inputs_embeds=leaf, use_cache=False, **flat(device)).logits
    logits.double().square().sum().backward()
    assert leaf.grad is not None
    return logits.detach().double().cpu(), leaf.grad.double().cpu()


@pytest.mark.parametrize(("kind", "device"), PATHS)
def test_as_exact_as_plain_attention(network: Any, kind: str, device: str) -> None:
    row = embedded(network)
    exact = alone(network, row, torch.float64, "cpu")
    plain = alone(network, row, torch.bfloat16 if device == "cuda" else torch.float32, device)
    for found, by_itself, right in zip(together(network, kind, device, row), plain, exact, strict=True):
        rounding = (by_itself - right).abs().max()
        assert rounding > 0
        assert (found - right).abs().max() < 2 * rounding


@pytest.mark.parametrize(("kind", "device"), PATHS)
def test_no_conversation_sees_another(network: Any, kind: str, device: str) -> None:
    row, other = embedded(network), embedded(network, seed=2)
    begin, end = LENGTHS[0] + LENGTHS[1], sum(LENGTHS[:3])
    changed = torch.cat([row[:, :begin], other[:, begin:end], row[:, end:]], dim=1)
    before, after = (together(network, kind, device, given)[0] for given in (row, changed))
    assert torch.equal(before[:, :begin], after[:, :begin])
    assert torch.equal(before[:, end:], after[:, end:])
    assert not torch.equal(before[:, begin:end], after[:, begin:end])


@pytest.mark.parametrize(("kind", "device"), PATHS)
def test_no_gradient_reaches_another(network: Any, kind: str, device: str) -> None:
    made = placed(network, kind, device)
    leaf = embedded(network).to(device, made.dtype).requires_grad_()
    begin, end = LENGTHS[0] + LENGTHS[1], sum(LENGTHS[:3])
    logits = made(inputs_embeds=leaf, use_cache=False, **flat(device)).logits
    logits[:, begin:end].float().square().sum().backward()
    assert leaf.grad is not None
    assert not leaf.grad[:, :begin].any()
    assert not leaf.grad[:, end:].any()
    assert leaf.grad[:, begin:end].abs().amax(-1).min() > 0


def test_a_padded_batch_is_refused(network: Any) -> None:
    made = placed(network, "varlen", "cpu")
    with pytest.raises(RuntimeError, match="flat rows with their boundaries"):
        made(input_ids=torch.ones(2, 4, dtype=torch.long))
