"""Typed requests composed from the shipped configuration, and cards that no machine here needs to have."""

import copy
import dataclasses
import functools
from typing import Protocol

import hydra
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf, open_dict

from sft_exp import cli, resolve, schema
from sft_exp.machine import Card, Machine
from sft_exp.request import Request, from_plain, to_plain

NO_GROUPS = ("hydra", "local")
GROUPS = sorted(folder.name for folder in cli.conf_dir().iterdir() if folder.is_dir() and folder.name not in NO_GROUPS)
NO_CARDS = Machine(torch="2.13.0+cpu", cores=8)
CARDS = {
    "v100": Card(index=0, name="Tesla V100-SXM2-32GB", capability=7.0, memory_gib=32.0),
    "4090": Card(index=0, name="NVIDIA GeForce RTX 4090", capability=8.9, memory_gib=24.0),
    "h200": Card(index=0, name="NVIDIA H200", capability=9.0, memory_gib=139.8),
}


class Compose(Protocol):
    """The fixture `compose`."""

    def __call__(self, *overrides: str) -> Request: ...


def machine(card: str, count: int = 1, *, driver_cuda: float = 13.0, torch_cuda: float | None = 13.0) -> Machine:
    """A machine with so many equal cards."""
    cards = [dataclasses.replace(CARDS[card], index=index, uuid=f"GPU-{index}") for index in range(count)]
    return Machine(
        cards=cards, driver="580.95", driver_cuda=driver_cuda, torch="2.13.0", torch_cuda=torch_cuda, cores=32
    )


def options(group: str) -> list[str]:
    """Names of a group's options."""
    return sorted(file.stem for file in (cli.conf_dir() / group).glob("*.yaml"))


def compose(*overrides: str) -> Request:
    """Request for overrides as typed; values are merged into the composed options, which takes a fifth of the time."""
    chosen = [item for item in overrides if item.partition("=")[0] in GROUPS]
    values = [item for item in overrides if item not in chosen]
    request = copy.deepcopy(_composed(*chosen))
    if values:
        merged = OmegaConf.merge(OmegaConf.structured(request.experiment), OmegaConf.from_dotlist(values))
        experiment = OmegaConf.to_object(merged)
        assert isinstance(experiment, schema.Experiment)
        request.experiment = experiment
    request.overrides = list(overrides)
    request.argv = list(overrides)
    return request


@functools.cache
def _composed(*overrides: str) -> Request:
    schema.register()
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(cli.conf_dir()), version_base=None):
        quoted = [cli.quote_zero(item) for item in overrides]
        config = hydra.compose("config", overrides=quoted, return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        with open_dict(config):
            del config["hydra"]
        return cli.to_request(config, list(overrides))


def resolved(*overrides: str, on: Machine = NO_CARDS) -> schema.Experiment:
    """The composed experiment as it would run on a machine."""
    return resolve.resolve(compose(*overrides).experiment, on)


def assembled(*overrides: str, on: Machine = NO_CARDS) -> schema.Experiment:
    """As `resolved`, put together from options composed one by one: hundreds of combinations in a second.

    Only for options of groups that do not touch each other, so not for `experiment`.
    """
    plain = to_plain(_composed().experiment)
    for item in overrides:
        key, _, value = item.partition("=")
        if key in GROUPS:
            plain[key] = to_plain(getattr(_composed(item).experiment, key))
    for item in overrides:
        key, _, value = item.partition("=")
        if key not in GROUPS:
            *path, last = key.split(".")
            functools.reduce(dict.__getitem__, path, plain)[last] = yaml.safe_load(value)
    return resolve.resolve(from_plain(schema.Experiment, plain), on)
