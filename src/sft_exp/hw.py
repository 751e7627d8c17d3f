"""The hardware profile, completed by what the machine has: processes, device, precision, attention, threads."""

import dataclasses
import importlib.metadata
import importlib.util
import re

from sft_exp.machine import Machine
from sft_exp.schema import Attention, Device, Hw, Model, Precision, Train

BF16_CAPABILITY = 8.0
"""First compute capability with bf16 in hardware (Ampere); torch emulates it on older cards, slowly."""
FLASH_CAPABILITY = 8.0
"""First compute capability that FlashAttention 2 runs on, and torch's variable-length attention with its kernels."""
FLAT = (Attention.varlen, Attention.flash_attention_2)
"""Implementations that take conversations of any length in one flat row, without padding and without a mask."""

VARLEN_TORCH = (2, 10)
"""First version of torch with `torch.nn.attention.varlen`."""

KNOWN = {kind.value for kind in Attention if kind is not Attention.auto}
"""What `hw.attention` may hold; other names are left for `check` to refuse."""


def resolve(hw: Hw, machine: Machine, global_batch: int) -> Hw:
    """Profile without `auto` and null; what cannot be had is left for `check` to refuse."""
    cards = machine.usable()
    device = hw.device
    if device is Device.auto:
        device = Device.cuda if cards else Device.cpu
    if hw.name == "auto" and device is Device.cuda and cards:
        hw = _from_cards(hw, machine)
    processes = (
        _processes(hw, machine, device, global_batch // max(1, hw.machines)) if hw.processes is None else hw.processes
    )
    precision = _precision(hw) if device is Device.cuda else Precision.fp32
    threads = max(1, machine.cores // max(1, processes)) if hw.threads is None else hw.threads
    devices = hw.devices
    if device is Device.cuda and devices is None and len(cards) >= processes:
        # Named, since not every launcher respects CUDA_VISIBLE_DEVICES.
        devices = [card.index for card in cards[:processes]]
    return dataclasses.replace(
        hw, device=device, processes=processes, devices=devices, precision=precision, threads=threads
    )


def _from_cards(hw: Hw, machine: Machine) -> Hw:
    card = machine.usable()[0]
    attention = hw.attention if hw.attention != ["sdpa"] else ["flash_attention_2", "sdpa"]
    return dataclasses.replace(
        hw,
        capability=hw.capability or card.capability,
        memory_gib=hw.memory_gib or card.memory_gib,
        attention=attention,
    )


def _processes(hw: Hw, machine: Machine, device: Device, global_batch: int) -> int:
    if hw.devices:
        return len(hw.devices)
    if device is Device.cpu:
        return 1
    # As many cards as share the batch out evenly: three cards and a batch of 16 give two processes.
    count = len(machine.usable())
    return next((n for n in range(count, 0, -1) if global_batch % n == 0), 1)


def _precision(hw: Hw) -> Precision:
    if hw.precision is not Precision.auto:
        return hw.precision
    return Precision.bf16 if (hw.capability or 0) >= BF16_CAPABILITY else Precision.fp16


def precision(train: Train, hw: Hw) -> Precision:
    """The run's precision: asked for, else the profile's."""
    return hw.precision if train.precision is Precision.auto else train.precision


def attention(model: Model, hw: Hw, precision: Precision) -> Attention:
    """First implementation of the profile's list that can run here, unless one is asked for."""
    if model.attention is not Attention.auto:
        return model.attention
    for name in (name for name in hw.attention if name in KNOWN):
        if attention_problem(Attention(name), hw, precision) is None:
            return Attention(name)
    return Attention.sdpa


def attention_problem(kind: Attention, hw: Hw, precision: Precision) -> str | None:
    """Why FlashAttention 2 or torch's variable-length attention cannot run, if it cannot."""
    if kind not in FLAT:
        return None
    if hw.device is not Device.cuda:
        return "it needs an NVIDIA GPU"
    if (hw.capability or FLASH_CAPABILITY) < FLASH_CAPABILITY:
        return f"it needs compute capability 8.0 and hw={hw.name} has {hw.capability}"
    if precision is Precision.fp32:
        return "it needs bf16 or fp16"
    if kind is Attention.varlen:
        found = importlib.metadata.version("torch") if importlib.util.find_spec("torch") else "none"
        return None if _numbers(found) >= VARLEN_TORCH else f"it needs torch 2.10 or newer, and torch is {found}"
    if importlib.util.find_spec("flash_attn") is None:
        return "the package flash-attn is not installed (pip install flash-attn)"
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
