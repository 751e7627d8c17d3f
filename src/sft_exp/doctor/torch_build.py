"""torch's build against the driver and the cards."""

import re
from collections.abc import Callable
from typing import Any

from sft_exp.doctor.line import Line, fail, judged, ok, skip
from sft_exp.machine import Card, Machine
from sft_exp.rules import machine as rules
from sft_exp.schema import Device, Experiment


def has_kernels(capability: float, architectures: list[str]) -> bool:
    """Whether a card of this compute capability runs a build with these architectures.

    Machine code (`sm_80`) runs on the same major version from its minor version on, intermediate code (`compute_80`)
    on everything newer; names that end in a letter are for one card only.
    """
    wanted = round(capability * 10)
    for name in architectures:
        if not (found := re.fullmatch(r"(sm|compute)_(\d+)(a|f)?", name)):
            continue
        number, only = int(found[2]), found[3]
        if number == wanted or (not only and found[1] == "compute" and number <= wanted):
            return True
        if not only and found[1] == "sm" and number // 10 == wanted // 10 and number <= wanted:
            return True
    return False


def driver(experiment: Experiment, machine: Machine) -> list[Line]:
    """Build and driver; a CPU build is well on a machine without a card."""
    built = f"torch {machine.torch}, built for {f'CUDA {machine.torch_cuda}' if machine.torch_cuda else 'the CPU'}"
    if machine.driver:
        built += f"; driver {machine.driver} runs CUDA up to {machine.driver_cuda}"
    elif experiment.hw.device is Device.cpu:
        return judged("torch", rules.torch(machine), f"{built}; no NVIDIA driver answers, and the run does not ask")
    sentences = [*rules.torch(machine), *rules.driver(machine)]
    return judged("torch", sentences, built)


def kernels(experiment: Experiment, machine: Machine, ask: Callable[[], dict[str, Any]]) -> Line:
    """Whether the build holds kernels for each of the chosen cards; `ask` starts a process, only if it must."""
    cards = machine.usable()
    if experiment.hw.device is Device.cpu or not cards:
        return skip("kernels", "no card that torch could use")
    answer = ask()
    if "error" in answer:
        return fail("kernels", f"torch cannot be asked ({answer['error']})", "reinstall torch")
    if not answer["available"]:
        return fail(
            "kernels", f"torch {machine.torch} sees no usable card",
            'run python -c "import torch; torch.zeros(1).cuda()" to see why',
        )  # fmt: skip
    return judge(cards, answer["architectures"], str(machine.torch))


def judge(cards: list[Card], architectures: list[str], version: str) -> Line:
    """The line for these cards and this build."""
    without = [card for card in cards if not has_kernels(card.capability, architectures)]
    if without:
        return fail(
            "kernels",
            f"torch {version} has no kernels for card {without[0].index}, a {without[0].name} of compute capability "
            f"{without[0].capability} (it has {' '.join(architectures)})",
            "install torch for another CUDA (V100: a build for CUDA 12.6)",
        )
    kinds = sorted({str(card.capability) for card in cards})
    return ok("kernels", f"torch has them for compute capability {', '.join(kinds)}")
