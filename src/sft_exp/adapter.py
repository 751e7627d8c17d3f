"""Low-rank adapters: their configuration, 4-bit base weights, and the precision of what is trained."""

import functools

import peft
import torch
from peft.tuners.trainable_tokens import TrainableTokensLayer
from peft.utils.other import TrainableTokensWrapper
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from sft_exp import targets
from sft_exp.errors import ConfigError
from sft_exp.random_weights import whole
from sft_exp.schema import Adapter, AdapterKind


def quantization(adapter: Adapter, compute_dtype: str) -> BitsAndBytesConfig | None:
    """4-bit loading for QLoRA; `compute_dtype` such as 'bfloat16' is the type of its matrix products."""
    if adapter.kind is not AdapterKind.qlora:
        return None
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=adapter.quant_type,
        bnb_4bit_use_double_quant=adapter.double_quant,
        bnb_4bit_compute_dtype=compute_dtype,
    )


def keep_unpacked(model: nn.Module) -> None:
    """Keep bitsandbytes from repacking 4-bit weights at the first pass without gradients, such as a probe's.

    It does so for good on CPUs with AVX512-BF16, and the packed ones know no gradient: training behind it fails where
    a layer has a bias, and stands still in silence elsewhere.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def lora_config(adapter: Adapter, model: PreTrainedModel, added_ids: list[int]) -> peft.LoraConfig | None:
    """Configuration for the trainer, None for full fine-tuning; the rows of `added_ids` are trained besides."""
    if adapter.kind is AdapterKind.full:
        return None
    return peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=adapter.r,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=_targets(adapter, model),
        trainable_token_indices=_token_rows(model, added_ids) if added_ids else None,
    )


def keep_trainable_float32(model: nn.Module) -> None:
    """Cast what is trained to float32: TRL makes QLoRA factors bfloat16, which loses small updates.

    To be called after the trainer is built and before its optimizer is. Shards of ZeRO-3 are left alone: DeepSpeed
    keeps float32 copies of them itself.
    """
    for parameter in model.parameters():
        if parameter.requires_grad and not hasattr(parameter, "ds_id"):
            parameter.data = parameter.data.float()


def save_factors_only(model: nn.Module) -> None:
    """Keep PEFT from saving whole embedding matrices beside an adapter.

    It does so where the matrices have grown, and then nothing loads the adapter: the padded rows do not fit. The rows
    of added tokens are saved by themselves.
    """
    if isinstance(model, peft.PeftModel):
        model.save_pretrained = functools.partial(model.save_pretrained, save_embedding_layers=False)


def linear_names(model: PreTrainedModel) -> list[str]:
    """Names that `adapter.target_modules` may hold; the output head cannot carry an adapter in TRL."""
    head = model.get_output_embeddings()
    linear = (name for name, module in model.named_modules() if _is_linear(module) and module is not head)
    return sorted({name.rpartition(".")[2] for name in linear})


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | Conv1D)  # 4-bit layers are subclasses of nn.Linear


def _targets(adapter: Adapter, model: PreTrainedModel) -> str | list[str]:
    names = targets.names(adapter)
    if names == [targets.ALL_LINEAR]:
        return targets.ALL_LINEAR
    if sentence := targets.problem(adapter, linear_names(model)):
        raise ConfigError(sentence)
    return names


def _collect(layer: TrainableTokensLayer, weight: torch.Tensor, rows: list[int], _: int) -> torch.Tensor:
    """Rows of a matrix that ZeRO-3 has split, on any device: PEFT 0.21 looks for a CUDA card."""
    with whole(weight), torch.no_grad():
        return weight[rows].clone()


def _token_rows(model: PreTrainedModel, ids: list[int]) -> dict[str, list[int]]:
    """Rows to train in the input matrix and, where it is a matrix of its own, in the output head."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head.bias is not None:
        raise ConfigError(
            f"model.special_tokens cannot be trained with LoRA in {type(model).__name__}: its output head has a bias; "
            f"use adapter=full."
        )
    # TRL's fused loss reads `lm_head.weight` and `lm_head.bias`, and PEFT's wrapper of a head has no `bias`
    # (trl 1.16, peft 0.21). The head has none either, so None is the true value.
    TrainableTokensWrapper.bias = None
    TrainableTokensLayer._collect_token_weights = _collect
    modules = [embedding] if head.weight is embedding.weight else [embedding, head]
    return {name.rpartition(".")[2]: ids for name, module in model.named_modules() if module in modules}
