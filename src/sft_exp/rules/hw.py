"""Rules about the profile that need no look at the machine."""

import re
from collections.abc import Iterator

from sft_exp.launch import INHERITED
from sft_exp.schema import Experiment

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
    for key in ("processes", "threads"):
        value = getattr(hw, key)
        if value is not None and value < 1:
            yield f"hw.{key}={value} must be at least 1."
