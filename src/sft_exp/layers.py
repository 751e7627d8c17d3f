"""Compiling a model layer by layer: one graph serves all layers, and what is between them stays as it is."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers.modeling_layers import GradientCheckpointingLayer


def decoder_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The repeated layers of a transformers model, with or without an adapter."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def compile_layers(model: torch.nn.Module) -> int:
    """Compile each decoder layer on its own, for any number of tokens; how many there are.

    The whole model in one graph would be compiled anew where one conversation has another length.
    """
    found = decoder_layers(model)
    for layer in found:
        layer.compile(dynamic=True)
    return len(found)


@contextmanager
def uncompiled(model: torch.nn.Module) -> Iterator[None]:
    """Run as written, for answers: each has other shapes, and compiling for them would take longer than they do."""
    compiled = [(layer, layer._compiled_call_impl) for layer in decoder_layers(model)]
    for layer, _ in compiled:
        layer._compiled_call_impl = None
    try:
        yield
    finally:
        for layer, call in compiled:
            layer._compiled_call_impl = call
