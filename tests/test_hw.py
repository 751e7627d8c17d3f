"""What a profile becomes on a machine."""

import importlib.metadata
import importlib.util

import pytest

from composing import NO_CARDS, machine
from sft_exp import hw
from sft_exp.machine import Machine
from sft_exp.schema import Attention, Device, Hw, Model, Precision, Train

FLASH = importlib.util.find_spec("flash_attn") is not None


@pytest.mark.parametrize(
    ("on", "whole", "expected"),
    [
        (NO_CARDS, 16, (Device.cpu, 1, Precision.fp32, 8)),
        (machine("v100"), 16, (Device.cuda, 1, Precision.fp16, 32)),
        (machine("4090", 4), 16, (Device.cuda, 4, Precision.bf16, 8)),
        (machine("4090", 3), 16, (Device.cuda, 2, Precision.bf16, 16)),
        (machine("4090", 4), 7, (Device.cuda, 1, Precision.bf16, 32)),
        (machine("h200", 2), 0, (Device.cuda, 2, Precision.bf16, 16)),
        (machine("4090", 4, torch_cuda=None), 16, (Device.cpu, 1, Precision.fp32, 32)),
    ],
)
def test_auto(on: Machine, whole: int, expected: tuple[Device, int, Precision, int]) -> None:
    found = hw.resolve(Hw(), on, whole)
    assert (found.device, found.processes, found.precision, found.threads) == expected


def test_auto_takes_the_numbers_of_the_card() -> None:
    found = hw.resolve(Hw(), machine("4090"), 16)
    assert (found.capability, found.memory_gib) == (8.9, 24.0)
    assert found.attention == ["flash_attention_2", "sdpa"]
    asked = hw.resolve(Hw(capability=8.6, memory_gib=12.0, attention=["eager"]), machine("4090"), 16)
    assert (asked.capability, asked.memory_gib, asked.attention) == (8.6, 12.0, ["eager"])


def test_a_profile_stays_what_it_says() -> None:
    """Even where the machine is another: `check` then refuses."""
    profile = Hw(name="4090x4", device=Device.cuda, processes=4, precision=Precision.bf16, capability=8.9, threads=3)
    assert hw.resolve(profile, NO_CARDS, 16) == profile
    assert hw.resolve(profile, machine("v100"), 16) == profile


def test_devices_give_the_number_of_processes() -> None:
    assert hw.resolve(Hw(devices=[2, 3]), machine("4090", 4), 16).processes == 2


def test_visible_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 1")
    on = machine("4090", 4)
    assert [card.index for card in on.usable()] == [3, 1]
    assert hw.resolve(Hw(), on, 16).processes == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert hw.resolve(Hw(), on, 16).device is Device.cpu


def test_precision() -> None:
    profile = Hw(precision=Precision.fp16)
    assert hw.precision(Train(), profile) is Precision.fp16
    assert hw.precision(Train(precision=Precision.bf16), profile) is Precision.bf16


def test_attention() -> None:
    card = Hw(device=Device.cuda, capability=8.9, attention=["flash_attention_2", "eager"])
    wanted = Attention.flash_attention_2 if FLASH else Attention.eager
    assert hw.attention(Model(), card, Precision.bf16) is wanted
    assert hw.attention(Model(), card, Precision.fp32) is Attention.eager
    assert (
        hw.attention(Model(), Hw(device=Device.cpu, attention=["flash_attention_2"]), Precision.bf16) is Attention.sdpa
    )
    asked = Model(attention=Attention.flash_attention_2)
    assert hw.attention(asked, Hw(device=Device.cpu), Precision.fp32) is Attention.flash_attention_2


@pytest.mark.parametrize(
    ("profile", "precision", "word"),
    [
        (Hw(device=Device.cpu), Precision.bf16, "NVIDIA GPU"),
        (Hw(device=Device.cuda, capability=7.0, name="v100"), Precision.fp16, "hw=v100 has 7.0"),
        (Hw(device=Device.cuda, capability=8.9), Precision.fp32, "bf16 or fp16"),
        pytest.param(
            Hw(device=Device.cuda), Precision.bf16, "flash-attn", marks=pytest.mark.skipif(FLASH, reason="installed")
        ),
    ],
)
def test_flash_problem(profile: Hw, precision: Precision, word: str) -> None:
    assert word in (hw.attention_problem(Attention.flash_attention_2, profile, precision) or "")


def test_variable_length_attention_needs_a_new_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Hw(device=Device.cuda, capability=8.0, attention=["varlen", "sdpa"])
    assert hw.attention(Model(), card, Precision.bf16) is Attention.varlen
    assert hw.attention(Model(), card, Precision.fp32) is Attention.sdpa
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.9.1+cu128")
    assert hw.attention(Model(), card, Precision.bf16) is Attention.sdpa
    assert "torch 2.10 or newer, and torch is 2.9.1" in str(
        hw.attention_problem(Attention.varlen, card, Precision.bf16)
    )
