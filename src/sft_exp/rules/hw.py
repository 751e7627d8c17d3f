"""Rules about the profile that need no look at the machine."""

import math
import re
from collections.abc import Iterator

from sft_exp import machines
from sft_exp.hw import KNOWN
from sft_exp.launch import INHERITED
from sft_exp.nearest import closest
from sft_exp.schema import Experiment, Hw, Launcher

SECRET = re.compile(r"token|secret|password|passwd|api_?key|credential", re.I)
"""Names of variables whose values may not stand in a record."""


def problems(experiment: Experiment) -> Iterator[str]:
    """One sentence for each variable and number that a profile cannot hold."""
    hw = experiment.hw
    for name in hw.env:
        if INHERITED.fullmatch(name) or name == "CUDA_VISIBLE_DEVICES":
            yield f"hw.env.{name} is set by the launcher: use hw.processes, hw.devices or hw.launcher."
        elif SECRET.search(name) and name != "TOKENIZERS_PARALLELISM":
            yield f"hw.env.{name} looks like a secret, which would stand in every record: export it in your shell."
    yield from _machines(experiment)
    for key in ("processes", "threads"):
        value = getattr(hw, key)
        if value is not None and value < 1:
            yield f"hw.{key}={value} must be at least 1."
    for key in ("capability", "memory_gib", "peak_tflops"):
        value = getattr(hw, key)
        if value is not None and not 0 < value < math.inf:
            yield f"hw.{key}={value} must be above 0."
    for name in hw.attention:
        if name not in KNOWN:
            known = ", ".join(sorted(KNOWN))
            yield f"hw.attention={hw.attention}: {name} is not possible.{closest(name, KNOWN)} Choices: {known}."
    yield from _devices(hw)


def _devices(hw: Hw) -> Iterator[str]:
    """One sentence if the list of cards is wrong on any machine."""
    devices = hw.devices
    if devices is None:
        return
    if negative := [index for index in devices if index < 0]:
        yield f"hw.devices={devices} holds {negative[0]}: cards are counted from 0, as nvidia-smi numbers them."
    elif len(set(devices)) != len(devices) or len(devices) != hw.processes:
        count = len(set(devices))
        yield (
            f"hw.devices={devices} must name each of hw.processes={hw.processes} cards once: name {hw.processes}"
            + (f", or set hw.processes={count}." if count and count != hw.processes else ".")
        )


def _machines(experiment: Experiment) -> Iterator[str]:
    hw = experiment.hw
    if hw.machines < 1:
        yield f"hw.machines={hw.machines} must be at least 1."
    if hw.machines <= 1:
        return
    if not machines.is_address(hw.rendezvous):
        yield f"hw.rendezvous={hw.rendezvous} must be host:port of the first of hw.machines={hw.machines} machines."
    if hw.launcher is Launcher.accelerate:
        yield f"hw.launcher=accelerate starts one machine only: use torchrun with hw.machines={hw.machines}."
    if experiment.resume:
        yield f"resume={experiment.resume} works on one machine only: leave hw.machines at 1."
