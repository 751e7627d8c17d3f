"""Rules about variables of the user's shell that reach the ranks."""

import re
from collections.abc import Iterator, Mapping

from sft_exp.machine import Machine
from sft_exp.record import redact
from sft_exp.schema import Device, Experiment

LEFT = re.compile(r"(NCCL|DS|TORCH|PYTORCH|CUDA|GLOO|TRL)_\w+|NVIDIA_TF32_OVERRIDE")
"""Variables of libraries that the run uses; those of launchers are dropped by `launch.INHERITED`."""
HARMLESS = re.compile(
    r"(CUDA|NCCL|PYTORCH)_(VERSION|HOME|PATH|ROOT|PKG_VERSION)|CUDA_(CACHE_\w+|VISIBLE_DEVICES|DEVICE_ORDER)"
    r"|TORCH_(HOME|EXTENSIONS_DIR|CUDA_ARCH_LIST)|NCCL_DEBUG\w*|TORCH_NCCL_\w+|NCCL_SOCKET_IFNAME|GLOO_SOCKET_IFNAME"
    r"|PYTORCH_(CUDA_)?ALLOC_CONF|DS_ACCELERATOR|DS_BUILD_\w+"
)
"""Variables that images of a container set, that only tell where things are, or that are handled by name."""
EFFECTS = {
    "CUDA_LAUNCH_BLOCKING": "makes every kernel wait, which is several times slower",
    "NCCL_P2P_DISABLE": "turns peer-to-peer copies off",
    "NVIDIA_TF32_OVERRIDE": "changes the precision of matrix products",
    "DS_SKIP_CUDA_CHECK": "lets DeepSpeed build with a CUDA toolkit that does not fit",
    "TORCH_LOGS": "prints what torch does at each step",
}
"""What a variable does, where that is known."""


def problems(experiment: Experiment, env: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each variable that contradicts the run."""
    wanted = experiment.hw.device.value
    given = env.get("DS_ACCELERATOR", wanted)
    if experiment.zero.stage > 0 and experiment.hw.device is Device.cuda and given != wanted:
        yield f"DS_ACCELERATOR={given} in your shell sends DeepSpeed to another device than hw.device=cuda: unset it."
    number = env.get("SFT_EXP_MACHINE", "")
    if experiment.hw.machines == 1 and number not in ("", "0"):
        yield (
            f"SFT_EXP_MACHINE={number} says that this is one of several machines, and hw.machines is 1: add "
            "hw.machines=N and hw.rendezvous=HOST:PORT, or unset it."
        )


def warnings(experiment: Experiment, env: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each variable that is known to change a run and does not stand in its profile."""
    for name in passed_on(experiment, env):
        if name in EFFECTS:
            yield f"{name}={redact(env[name])} in your shell {EFFECTS[name]}: unset it if other work has left it."


def passed_on(experiment: Experiment, env: Mapping[str, str]) -> list[str]:
    """Variables of the shell that reach the ranks, are not harmless, and do not stand in the profile."""
    return [
        name
        for name in sorted(env)
        if LEFT.fullmatch(name) and not HARMLESS.fullmatch(name) and name not in experiment.hw.env
    ]


def visible(machine: Machine, env: Mapping[str, str]) -> Iterator[str]:
    """One sentence if CUDA_VISIBLE_DEVICES names cards that are not there."""
    given = [item.strip() for item in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if item.strip()]
    known = {name for card in machine.cards for name in (str(card.index), card.uuid)}
    if machine.cards and (unknown := [item for item in given if item not in known]):
        yield (
            f"CUDA_VISIBLE_DEVICES={','.join(given)} names {unknown[0]} and this machine has "
            f"{[card.index for card in machine.cards]}: unset it, or choose cards with hw.devices."
        )
