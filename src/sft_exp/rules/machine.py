"""Rules about this machine: cards, driver, disk."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from sft_exp import sizes, tracking
from sft_exp.machine import Machine
from sft_exp.schema import Device, Experiment


def problems(experiment: Experiment, machine: Machine) -> Iterator[str]:
    """One sentence for each thing the run needs and this machine does not have."""
    hw = experiment.hw
    yield from _outputs(experiment)
    if sentence := tracking.unreachable(experiment.tracking):
        yield sentence
    if machine.torch is None:
        yield "torch is not installed: pip install torch."
    if hw.device is Device.cpu:
        if hw.devices:
            yield f"hw.devices={hw.devices} names cards and hw.device is cpu: remove one of the two."
        return
    yield from _driver(machine)
    cards = machine.usable()
    processes = hw.processes or 1
    if len(cards) < processes:
        have = "no usable GPU" if not cards else f"{len(cards)} usable GPU{'s' if len(cards) > 1 else ''}"
        yield (
            f"hw={hw.name} needs {processes} GPU{'s' if processes > 1 else ''} and this machine has {have} "
            f"({processes - len(cards)} missing): see what would run with `python -m sft_exp plan ...`, "
            f"or try the same ranks on the CPU with hw.device=cpu."
        )
    yield from _devices(experiment, machine)
    slow = [card for card in cards[:processes] if hw.capability and card.capability != hw.capability]
    if slow:
        yield (
            f"hw={hw.name} describes cards of compute capability {hw.capability}, and card {slow[0].index} is a "
            f"{slow[0].name} with {slow[0].capability}: use hw=auto, or set hw.capability={slow[0].capability}."
        )


def _driver(machine: Machine) -> Iterator[str]:
    if machine.cards and machine.torch_cuda is None:
        yield (
            f"torch {machine.torch} is built without CUDA, so the {len(machine.cards)} GPUs cannot be used: install a "
            "CUDA build of torch."
        )
    elif machine.driver_cuda and machine.torch_cuda and int(machine.driver_cuda) < int(machine.torch_cuda):
        yield (
            f"torch {machine.torch} is built for CUDA {machine.torch_cuda} and driver {machine.driver} runs at most "
            f"{machine.driver_cuda}: update the driver, or install torch for CUDA {int(machine.driver_cuda)}."
        )


def _devices(experiment: Experiment, machine: Machine) -> Iterator[str]:
    devices = experiment.hw.devices
    if devices is None:
        return
    known = [card.index for card in machine.cards]
    unknown = [index for index in devices if index not in known]
    if known and unknown:
        yield f"hw.devices={devices} names card {unknown[0]} and this machine has {known}."
    if len(set(devices)) != len(devices) or len(devices) != experiment.hw.processes:
        yield f"hw.devices={devices} must name each of hw.processes={experiment.hw.processes} cards once."


def _outputs(experiment: Experiment) -> Iterator[str]:
    folder = Path(experiment.outputs)
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        free = shutil.disk_usage(existing).free
        need = sizes.disk_bytes(experiment)
    except OSError as error:
        yield f"outputs={folder} cannot be read ({error.strerror}): set outputs=FOLDER."
        return
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        yield f"outputs={folder} cannot be written: set outputs=FOLDER to a folder of yours."
    elif free < need:
        yield (
            f"outputs={folder} has {free / 2**30:.1f} GiB free and this run may write {need / 2**30:.1f} GiB: "
            f"free some, set outputs=FOLDER elsewhere, or keep fewer checkpoints (train.save_total_limit)."
        )
