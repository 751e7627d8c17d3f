"""Rules about this machine: cards, driver, memory, disk, and what is left over in its shell."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from sft_exp import host, hub_access, profiles, sizes, tracking_store
from sft_exp.machine import Card, Machine
from sft_exp.rules import environment
from sft_exp.rules import tracking as rules_tracking
from sft_exp.schema import Device, Experiment, TrackingKind

DRIVERS = {11: "450", 12: "525", 13: "580"}
"""Oldest driver for each major version of CUDA."""
CAPABILITIES = {13: 7.5}
"""Lowest compute capability that a major version of CUDA compiles for, where it leaves out a card of our profiles."""


def problems(experiment: Experiment, machine: Machine) -> Iterator[str]:
    """One sentence for each thing the run needs and this machine does not have."""
    yield from outputs(experiment)
    yield from tracker(experiment)
    yield from hub(experiment, os.environ)
    yield from torch(machine)
    if machine.host:
        yield from host.problems(experiment, machine.host)
        if host.through_shm(experiment) and (sentence := host.shm_problem(experiment, machine.host)):
            yield sentence
    yield from environment.problems(experiment, os.environ)
    if experiment.hw.device is Device.cuda:
        yield from driver(machine)
    yield from profile(experiment, machine)


def warnings(experiment: Experiment, machine: Machine) -> Iterator[str]:
    """One sentence for what this machine adds to a run that works."""
    yield from environment.warnings(experiment, os.environ)
    yield from environment.visible(machine, os.environ)


def tracker(experiment: Experiment) -> Iterator[str]:
    """Whether the tracking store answers, or can be written where it is a file."""
    settings = experiment.tracking
    if settings.kind is TrackingKind.none or not settings.uri or rules_tracking.uri_problem(settings.uri):
        return
    if sentence := tracking_store.unreachable(settings):
        yield sentence
    if settings.uri.startswith("sqlite:///"):
        store = Path(settings.uri.removeprefix("sqlite:///"))
        if store.parent == Path(experiment.outputs):  # `outputs` is checked as such
            return
        if store.is_dir():
            yield f"tracking.uri={settings.uri} is a folder: name a file in it, such as {settings.uri}/mlflow.db."
        elif not _writable(store if store.exists() else store.parent):
            yield f"tracking.uri={settings.uri} cannot be written: name a file in a folder of yours."


def hub(experiment: Experiment, env: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each model or tokenizer that must come from the hub and may not."""
    if not hub_access.offline(env):
        return
    for repository in hub_access.needed(experiment):
        kind, _, name = repository.partition("--")
        # Prepared datasets have caches of their own besides the hub's.
        if kind == "models" and not hub_access.cached(repository, env):
            yield (
                f"the model {name.replace('--', '/')} is not in the hub's cache and HF_HUB_OFFLINE "
                "forbids to fetch it: unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE, or give a local folder."
            )


def torch(machine: Machine) -> Iterator[str]:
    """Whether there is a torch."""
    if machine.torch is None:
        yield "torch is not installed: pip install torch."


def profile(experiment: Experiment, machine: Machine) -> Iterator[str]:
    """One sentence for each thing that the hardware profile says and the machine does not have."""
    hw = experiment.hw
    if hw.device is Device.cpu:
        if hw.devices:
            yield f"hw.devices={hw.devices} names cards and hw.device is cpu: remove one of the two."
        return
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
    chosen = [card for card in machine.cards if card.index in hw.devices] if hw.devices else cards[:processes]
    yield from _other_cards(experiment, chosen)


def _other_cards(experiment: Experiment, chosen: list[Card]) -> Iterator[str]:
    """One sentence if the profile describes cards of another kind; it names the profile that describes these."""
    hw = experiment.hw
    for card in chosen:
        if hw.capability and card.capability != hw.capability:
            yield (
                f"hw={hw.name} describes cards of compute capability {hw.capability}, and card {card.index} is a "
                f"{card.name} with {card.capability}: use hw={profiles.matching(chosen)}, or set "
                f"hw.capability={card.capability}."
            )
            return
        if hw.memory_gib and profiles.smaller(card, hw.memory_gib):
            yield (
                f"hw={hw.name} describes cards of {hw.memory_gib:g} GiB, and card {card.index} is a {card.name} with "
                f"{card.memory_gib:g}: use hw={profiles.matching(chosen)}, or set hw.memory_gib={card.memory_gib:g}."
            )
            return


def driver(machine: Machine) -> Iterator[str]:
    """Whether torch's build, the driver and the cards go together."""
    if machine.cards and machine.torch_cuda is None:
        yield (
            f"torch {machine.torch} is built without CUDA, so the {len(machine.cards)} GPUs cannot be used: install a "
            "CUDA build of torch."
        )
    elif machine.driver_cuda and machine.torch_cuda and int(machine.driver_cuda) < int(machine.torch_cuda):
        yield (
            f"torch {machine.torch} is built for CUDA {machine.torch_cuda} and driver {machine.driver} runs at most "
            f"{machine.driver_cuda}: update the driver to {DRIVERS.get(int(machine.torch_cuda), 'a newer one')} or "
            f"newer, or install torch for CUDA {int(machine.driver_cuda)}."
        )
    lowest = CAPABILITIES.get(int(machine.torch_cuda or 0), 0.0)
    if old := [card for card in machine.usable() if card.capability < lowest]:
        yield (
            f"torch {machine.torch} is built for CUDA {machine.torch_cuda}, which has no kernels for card "
            f"{old[0].index}, a {old[0].name} of compute capability {old[0].capability} (lowest {lowest}): install "
            "torch for CUDA 12.6."
        )


def _devices(experiment: Experiment, machine: Machine) -> Iterator[str]:
    devices = experiment.hw.devices
    if devices is None:
        return
    known = [card.index for card in machine.cards]
    unknown = [index for index in devices if index >= 0 and index not in known]
    if known and unknown:
        yield f"hw.devices={devices} names card {unknown[0]} and this machine has {known}."


def free_bytes(experiment: Experiment) -> int:
    """Free space where outputs go. Raises OSError if it cannot be read."""
    return shutil.disk_usage(_existing(Path(experiment.outputs))).free


def _existing(folder: Path) -> Path:
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def _writable(path: Path) -> bool:
    """Whether files can be made at or below a path; /proc and its like have no room for any."""
    existing = _existing(path)
    fits = existing.is_dir() or existing == path
    return fits and os.access(existing, os.W_OK) and shutil.disk_usage(existing).total > 0


def outputs(experiment: Experiment) -> Iterator[str]:
    """Whether outputs can be written, and hold what the run writes."""
    folder = Path(experiment.outputs)
    try:
        free = free_bytes(experiment)
        need = sizes.disk_bytes(experiment)
    except OSError as error:
        yield f"outputs={folder} cannot be read ({error.strerror}): set outputs=FOLDER."
        return
    if not _writable(folder):
        yield f"outputs={folder} cannot be written: set outputs=FOLDER to a folder of yours."
    elif free < need:
        yield (
            f"outputs={folder} has {free / 2**30:.1f} GiB free and this run may write {need / 2**30:.1f} GiB: "
            f"free some, set outputs=FOLDER elsewhere, or keep fewer checkpoints (train.save_total_limit)."
        )
