"""Looking at a model between two steps without leaving a trace: random state, modes, peaks of memory."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from sft_exp import layers
from sft_exp.meter import Meter

PADDED = ("sdpa", "eager", "flash_attention_2")
"""Attention implementations that take padded batches of any length as they are."""


@contextmanager
def quiet(model: torch.nn.Module, meter: Meter) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards everything is as it was.

    Each module gets back its own mode: some are frozen in evaluation mode on purpose. Random states are those of torch
    (CPU and this rank's card), numpy and Python.
    """
    modes = {module: module.training for module in model.modules()}
    python, legacy = random.getstate(), np.random.get_state()
    cards = [meter.device] if meter.device.type == "cuda" else []
    with (
        torch.random.fork_rng(cards),
        torch.no_grad(),
        meter.own_peak(),
        plain_attention(model),
        layers.uncompiled(model),
    ):
        model.eval()
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode
            random.setstate(python)
            np.random.set_state(legacy)


@contextmanager
def plain_attention(model: Any) -> Iterator[None]:
    """Compute with sdpa where training has an implementation that is compiled, or made for packed rows only."""
    kind = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if kind in PADDED or kind is None:
        yield
        return
    model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(kind)


@contextmanager
def generation_settings(model: Any, settings: Any) -> Iterator[None]:
    """Let `generate` see these settings and nothing of the checkpoint's own, such as a repetition penalty."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT hands its settings on
    own = [(holder, holder.generation_config) for holder in (model, inner)]
    model.generation_config = settings
    try:
        yield
    finally:
        for holder, before in own:
            holder.generation_config = before
