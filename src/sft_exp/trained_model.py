"""The model of a finished run, loaded for answers or for merging, and the model that it was trained from.

An adapter is put on what the run itself loaded before its first step: the base from `model.load_model`, in 4 bits
under QLoRA, with the rows of its added tokens.
"""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from sft_exp import request
from sft_exp.errors import ConfigError
from sft_exp.rundir import RunDir
from sft_exp.schema import AdapterKind, Attention, Device, Dtype, Experiment, Model, Precision, Weights
from sft_exp.tokenizer import load_tokenizer


@dataclass
class Trained:
    """A trained model, ready to answer."""

    network: Any
    tokenizer: PreTrainedTokenizerFast
    base: Any = None
    """The model before training; None if it was not asked for, or if it is `network` without its adapter."""

    def before(self) -> tuple[Any, Callable[[], AbstractContextManager[Any]]]:
        """The model before training, and what has to be entered while it answers."""
        if self.base is not None:
            return self.base, nullcontext
        return self.network, self.network.disable_adapter


def tokenizer(run: RunDir) -> PreTrainedTokenizerFast:
    """The tokenizer that was saved with the model, with its chat template."""
    return load_tokenizer(Model(path=str(run.model)))


def load(run: RunDir, device: torch.device, *, with_base: bool = False) -> Trained:
    """Load for answers: in the type of the run's matrix products on a card, in fp32 on the CPU.

    Raises ConfigError where the base is gone or cannot be drawn again.
    """
    experiment = for_device(request.read(run.request).experiment, device)
    saved = tokenizer(run)
    if experiment.adapter.kind is AdapterKind.full:
        network = full(run, experiment)
        base = load_base(experiment, saved, device) if with_base else None
    else:
        network, base = adapted(run, load_base(experiment, saved, device)), None
    for part in filter(None, (network, base)):
        part.to(device).eval()
    return Trained(network, saved, base)


def for_device(experiment: Experiment, device: torch.device) -> Experiment:
    """The experiment with types and attention that answers on `device` can use."""
    precision = experiment.train.precision if device.type == "cuda" else Precision.fp32
    if precision is Precision.bf16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        precision = Precision.fp16
    dtype = {Precision.bf16: Dtype.bfloat16, Precision.fp16: Dtype.float16}.get(precision, Dtype.float32)
    return with_types(experiment, dtype, precision)


def with_types(experiment: Experiment, dtype: Dtype, precision: Precision) -> Experiment:
    """The experiment with other types, and with attention that knows a cache."""
    eager = experiment.model.attention is Attention.eager
    attention = Attention.eager if eager else Attention.sdpa
    return dataclasses.replace(
        experiment,
        model=dataclasses.replace(experiment.model, dtype=dtype, attention=attention),
        train=dataclasses.replace(experiment.train, precision=precision),
    )


def full(run: RunDir, experiment: Experiment) -> Any:
    """All weights, from the run's folder."""
    settings = experiment.model
    return AutoModelForCausalLM.from_pretrained(
        str(run.model), dtype=settings.dtype.value, attn_implementation=settings.attention.value,
        trust_remote_code=settings.trust_remote_code,
    )  # fmt: skip


def load_base(experiment: Experiment, saved: PreTrainedTokenizerFast, device: torch.device) -> Any:
    """The model as it was before the first step; `saved` is the tokenizer after training."""
    from sft_exp.train import load_network  # TRL: not needed for a model that was trained whole

    drawn, here = experiment.hw.device, Device.cuda if device.type == "cuda" else Device.cpu
    if experiment.model.weights is Weights.random and drawn is not here:  # cards and processors draw other numbers
        raise ConfigError(f"model.weights=random drew the base on {drawn.value}, which {here.value} cannot draw again.")
    return load_network(experiment, saved, saved.eos_token_id)


def adapted(run: RunDir, base: Any) -> Any:
    """The run's adapter on its base, with the generation settings that were saved."""
    network = PeftModel.from_pretrained(base, str(run.model))
    network.generation_config = base.generation_config = GenerationConfig.from_pretrained(str(run.model))
    return network
