"""What `doctor` sees of this machine at this moment, as far as it concerns a run: made by each run before it starts.

The checks that need torch, and therefore seconds, are left to the ranks: kernels (`train`), page-locked memory
(`pinning`) and values that arrive wrong (`links`).
"""

import os
from collections.abc import Iterator
from pathlib import Path

from sft_exp.doctor import cards, environment, leftover_runs, memory, nvml, places, topology, versions
from sft_exp.doctor.line import Line, State
from sft_exp.errors import ConfigError
from sft_exp.machine import Machine
from sft_exp.schema import Experiment

FATAL = ("memory in use", "hub")
"""Lines whose fault ends every run; the others are shown."""


def lines(experiment: Experiment, machine: Machine) -> Iterator[Line]:
    """Every line of the doctor that starts no process and that `check` has not looked at."""
    driver, chosen = nvml.read(), cards.chosen(experiment, machine)
    # Untested versions stand in the record of every run.
    yield from (line for line in versions.lines(experiment) if line.state is not State.warn)
    yield from cards.lines(experiment, machine, driver)
    yield leftover_runs.line()
    yield from topology.lines(experiment, chosen, driver)
    if machine.host:
        yield from memory.shm(experiment, machine.host)
        yield memory.locked(experiment, machine.host)
    yield places.model_hub(experiment, os.environ)
    yield from environment.settings(experiment, os.environ, Path.cwd())


def notes(experiment: Experiment, machine: Machine) -> list[str]:
    """Sentences to show. Raises ConfigError with all that would end the run."""
    found = [line for line in lines(experiment, machine) if line.state in (State.warn, State.fail)]
    fatal = [line for line in found if line.state is State.fail and line.name in FATAL]
    if fatal:
        raise ConfigError(*map(_sentence, fatal))
    return [_sentence(line) for line in found]


def _sentence(line: Line) -> str:
    return f"{line.name}: {line.found}: {line.advice}."
