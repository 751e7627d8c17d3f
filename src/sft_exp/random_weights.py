"""`model.weights=random`: the shape of a model with drawn weights, equal on all ranks and at every ZeRO stage."""

import os
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig, PretrainedConfig, PreTrainedModel
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from sft_exp.errors import ConfigError
from sft_exp.rules.model import UNQUANTIZABLE
from sft_exp.schema import Model
from sft_exp.sizes import vocabulary_problem
from sft_exp.tokenizer import load_tokenizer


def random_model(
    model: Model, *, dtype: str, attention: str, seed: int, quantization: BitsAndBytesConfig | None
) -> PreTrainedModel:
    """Build the shape in `dtype` directly, without a detour over fp32, and draw its weights."""
    if quantization is not None:
        return _quantized(model, dtype, attention, seed, quantization)
    cuda = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else None
    # The card draws 7B values in seconds, a processor needs minutes; ZeRO-3 chooses the device itself.
    device: AbstractContextManager[object] = nullcontext() if cuda is None or is_deepspeed_zero3_enabled() else cuda
    with torch.random.fork_rng(devices=[cuda] if cuda else []), device:
        torch.manual_seed(seed)
        network = AutoModelForCausalLM.from_config(_config(model), dtype=dtype, attn_implementation=attention)
    draw(network, seed)
    return network


def draw(network: PreTrainedModel, seed: int) -> None:
    """Draw every matrix anew from its own name and the seed.

    The library draws in another order when ZeRO-3 splits the model while it is built, so that stages could not be
    compared. Vectors keep their values: norms start at one, biases at zero.
    """
    spread = network.config.get_text_config().initializer_range
    for name, weight in network.named_parameters():
        if len(getattr(weight, "ds_shape", weight.shape)) < 2:
            continue
        with whole(weight) as ours, torch.no_grad():
            if ours:
                generator = torch.Generator(weight.device).manual_seed(zlib.crc32(name.encode()) + seed)
                weight.normal_(0.0, spread, generator=generator)
                # Values that bf16 can hold, as published checkpoints have: 16-bit and fp32 runs start from the same.
                weight.copy_(weight.to(torch.bfloat16))


def _quantized(
    model: Model, dtype: str, attention: str, seed: int, quantization: BitsAndBytesConfig
) -> PreTrainedModel:
    """Only loading quantises, so the drawn weights are loaded as a checkpoint in memory."""
    if is_deepspeed_zero3_enabled():
        raise ConfigError(UNQUANTIZABLE)
    drawn = random_model(model, dtype=dtype, attention=attention, seed=seed, quantization=None)
    quantized = type(drawn).from_pretrained(
        None,
        config=drawn.config,
        state_dict=drawn.state_dict(),
        dtype=dtype,
        attn_implementation=attention,
        quantization_config=quantization,
    )
    assert isinstance(quantized, PreTrainedModel)
    return quantized


def _config(model: Model) -> PretrainedConfig:
    shape = {name: getattr(model.shape, name) for name in model.shape.__dataclass_fields__}
    if missing := [name for name, value in shape.items() if value is None]:
        raise ConfigError(f"model.weights=random needs model.shape.{', model.shape.'.join(missing)}: set them.")
    tokenizer = load_tokenizer(model)
    published = max(tokenizer.get_vocab().values()) + 1
    # Rows for configured tokens are added by `add_token_rows`, but the tokenizer's own must fit.
    if shape["vocab_size"] < published - len(model.special_tokens):
        raise ConfigError(vocabulary_problem(shape["vocab_size"], published))
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    return AutoConfig.for_model(shape.pop("model_type"), **shape, **ids)


@contextmanager
def whole(weight: torch.Tensor) -> Iterator[bool]:
    """Under ZeRO-3 put the shards together; yields whether this rank writes (rank 0's values go to all)."""
    if not hasattr(weight, "ds_id"):
        yield True
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(weight, modifier_rank=0):
        yield torch.distributed.get_rank() == 0
