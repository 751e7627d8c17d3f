"""Hydra's launchers for clusters (submitit, ray): which one a command line chooses, and jobs handed over to it."""

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hydra._internal.callbacks import Callbacks
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.experimental.callback import Callback
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, flag_override

from sft_exp.sweeps import remote
from sft_exp.sweeps.job import Job

OWN = "basic"
"""Hydra's default; sft_exp runs such jobs itself."""
COMPOSES_HERE = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


@dataclass(frozen=True)
class Launcher:
    """One of Hydra's launchers with its settings."""

    name: str
    config: DictConfig
    loader: ConfigLoader

    def launch(self, folder: Path, jobs: Sequence[Job]) -> None:
        """Hand jobs over, and return when the launcher says that all have ended. Raises whatever it raises."""
        with flag_override(self.config, ["struct", "readonly"], [False, False]):
            self.config.hydra.sweep.dir = str(folder)
        work = functools.partial(remote.work, str(folder), str(Path.cwd()), [job.number for job in jobs])
        context = HydraContext(config_loader=self.loader, callbacks=Callbacks())
        plugin = Plugins.instance().instantiate_launcher(context, work, self.config)
        plugin.launch([job.request.overrides if job.request else [] for job in jobs], initial_job_idx=0)


class Chosen(Callback):
    """Called by Hydra before it composes a sweep (config.yaml): every job is composed here, whoever runs it."""

    launcher: ClassVar[Launcher | None] = None

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Keep the launcher, and put the one that composes here in its place."""
        name = str(config.hydra.runtime.choices["hydra/launcher"])
        if name == OWN:
            return
        Chosen.launcher = Launcher(name, copy.deepcopy(config), GlobalHydra.instance().config_loader())
        with flag_override(config, ["struct", "readonly"], [False, False]):
            config.hydra.launcher = OmegaConf.create({"_target_": COMPOSES_HERE})
