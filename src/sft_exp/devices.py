"""Where a finished model is loaded: the first visible card, or the CPU. Decided before torch is imported."""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sft_exp.errors import ConfigError
from sft_exp.machine import Machine

if TYPE_CHECKING:
    import torch

CHOICES = ("auto", "cpu", "cuda")


def choose(name: str, machine: Machine, needed_gib: float = 0.0) -> str:
    """`cpu` or `cuda` for one of `CHOICES`; `auto` is a card of at least `needed_gib`, else the CPU.

    Where it is the CPU the cards are hidden from this process, since 4-bit weights would go to one of their own.
    """
    cards = machine.usable()
    if name == "cuda" and not cards:
        raise ConfigError(f"--device cuda: torch {machine.torch} can use no card here; use --device cpu.")
    if name == "cuda" or (name == "auto" and cards and cards[0].memory_gib >= needed_gib):
        return "cuda"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return "cpu"


@contextlib.contextmanager
def enough_memory(device: "torch.device") -> Iterator[None]:
    """One sentence instead of a traceback where the card is too small or in use."""
    import torch

    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise ConfigError(f"{device} has too little free memory: free it, or use --device cpu.") from error
