"""Merges an adapter into its base, and saves what was trained as a plain folder.

The sums are made in fp32 and rounded once. A QLoRA adapter learned to correct the rounded 4-bit weights, so that those,
dequantised, are its base: with the original weights it would be as wrong as if merged into 4 bits again.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from sft_exp import checkpoint, difference, request, trained_model
from sft_exp.difference import Difference
from sft_exp.rundir import RunDir
from sft_exp.schema import AdapterKind, Experiment, Precision, Weights


def merge(run: RunDir, folder: Path, device: torch.device, dtype: str) -> Difference:
    """Fill `folder` and return how far the model in it, read again, is from the trained one.

    Both compute in fp32, so that the difference is that of the weights. `dtype` is such as 'bfloat16', or 'auto'.
    """
    experiment = exact(request.read(run.request).experiment)
    tokenizer = trained_model.tokenizer(run)
    texts = difference.texts(tokenizer, experiment.model.special_tokens)
    before = difference.logits(_trained(run, experiment, device), texts)
    whole = _whole(run, experiment, device)
    whole.to(saved_type(run, experiment) if dtype == "auto" else getattr(torch, dtype))
    whole.save_pretrained(str(folder))
    del whole
    save_tokenizer(run, folder)
    again = AutoModelForCausalLM.from_pretrained(
        str(folder), dtype="float32", attn_implementation=experiment.model.attention.value,
        trust_remote_code=experiment.model.trust_remote_code,
    )  # fmt: skip
    return difference.compare(before, difference.logits(again.to(device).eval(), texts))


def exact(experiment: Experiment) -> Experiment:
    """Weights in the type that the run kept them in, and fp32 for everything that is computed."""
    return trained_model.with_types(experiment, experiment.model.dtype, Precision.fp32)


def _trained(run: RunDir, experiment: Experiment, device: torch.device) -> Any:
    """What the run trained, its adapter apart and its 4-bit weights as they are."""
    if experiment.adapter.kind is AdapterKind.full:
        return _in_float32(trained_model.full(run, experiment)).to(device).eval()
    base = _in_float32(trained_model.load_base(experiment, trained_model.tokenizer(run), device))
    network = trained_model.adapted(run, base).to(device).eval()
    if experiment.adapter.kind is AdapterKind.qlora:
        from bitsandbytes.nn import Linear4bit

        for layer in network.modules():
            if isinstance(layer, Linear4bit):
                layer.training = True  # in eval mode some CPUs pack the weights and multiply in bf16
    return network


def _whole(run: RunDir, experiment: Experiment, device: torch.device) -> Any:
    """The same with plain weights, in the base as it is loaded anew."""
    if experiment.adapter.kind is AdapterKind.full:
        return trained_model.full(run, experiment)
    base = trained_model.load_base(experiment, trained_model.tokenizer(run), device)
    if experiment.adapter.kind is AdapterKind.qlora:
        base = base.dequantize(dtype=torch.float32)
    return trained_model.adapted(run, _in_float32(base).to(device)).merge_and_unload()


def _in_float32(network: Any) -> Any:
    """Cast in place; 4-bit weights, which are bytes, stay."""
    for parameter in network.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.float()
    return network


def saved_type(run: RunDir, experiment: Experiment) -> torch.dtype:
    """Type of the base checkpoint; of the run's own model where all weights were trained."""
    settings = experiment.model
    if experiment.adapter.kind is not AdapterKind.full and settings.weights is Weights.random:
        return getattr(torch, settings.dtype.value)
    own = experiment.adapter.kind is AdapterKind.full
    config = AutoConfig.from_pretrained(
        str(run.model) if own else checkpoint.resolve(settings), trust_remote_code=settings.trust_remote_code,
        revision="main" if own else settings.revision or "main",
    )  # fmt: skip
    return config.dtype or torch.float32


def save_tokenizer(run: RunDir, folder: Path) -> None:
    """Tokenizer, chat template and generation settings: the files that the run saved, as they are."""
    patterns = {*checkpoint.TOKENIZER_PATTERNS, "generation_config.json"} - {"config.json"}
    for file in {file for pattern in patterns for file in run.model.glob(pattern)}:
        shutil.copyfile(file, folder / file.name)
