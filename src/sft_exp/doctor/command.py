"""`python -m sft_exp doctor [OVERRIDE ...] [--json]`: every check, in the order in which a run needs them."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from sft_exp import machine as machines
from sft_exp.doctor import (
    allreduce,
    cards,
    child,
    compilers,
    environment,
    leftover_runs,
    memory,
    nvml,
    places,
    topology,
    torch_build,
    versions,
)
from sft_exp.doctor.line import Line, State
from sft_exp.errors import SftExpError
from sft_exp.machine import Machine
from sft_exp.request import Request, to_plain
from sft_exp.resolve import resolve
from sft_exp.schema import Experiment

JSON = "--json"
"""The only flag; the command line leaves it in `Request.argv`."""


def show(request: Request) -> None:
    """Print the report line by line. Raises SftExpError, exit code 1, if a check failed."""
    machine = machines.look()
    experiment = resolve(request.experiment, machine)
    found = []
    for line in examine(experiment, machine):
        found.append(line)
        if JSON not in request.argv:
            print(text(line), flush=True)
    if JSON in request.argv:
        print(json.dumps(to_plain(found), indent=2, ensure_ascii=False))
    count = Counter(line.state for line in found)
    if JSON not in request.argv:
        print("\n" + ", ".join(f"{count[state]} {state.value}" for state in State))
    if count[State.fail]:
        names = ", ".join(dict.fromkeys(line.name for line in found if line.state is State.fail))
        raise SftExpError(f"this run would not work here ({names}): see the lines marked fail.")


def text(line: Line) -> str:
    """One line for people."""
    return f"{line.state.value:<4}  {line.name:<15} {line.found}{f': {line.advice}' if line.advice else ''}"


def examine(experiment: Experiment, machine: Machine) -> Iterator[Line]:
    """All lines; those that start processes come last."""
    driver, chosen = nvml.read(), cards.chosen(experiment, machine)
    yield from versions.lines(experiment)
    yield from torch_build.driver(experiment, machine)
    yield torch_build.kernels(experiment, machine, lambda: child.ask(experiment, "build"))
    yield from compilers.lines(experiment)
    yield from cards.profile(experiment, machine)
    yield from cards.lines(experiment, machine, driver)
    yield leftover_runs.line()
    yield from topology.lines(experiment, chosen, driver)
    yield from _host(experiment, machine)
    yield from places.disk(experiment)
    yield from places.tracker(experiment)
    yield places.model_hub(experiment, os.environ)
    yield from environment.variables(experiment, machine, os.environ)
    yield from environment.files(experiment, os.environ, Path.cwd())
    yield from allreduce.lines(experiment)


def _host(experiment: Experiment, machine: Machine) -> Iterator[Line]:
    host = machine.host
    assert host is not None  # `look` reads it
    yield from memory.ram(experiment, host)
    yield from memory.shm(experiment, host)
    yield memory.locked(experiment, host)
    yield memory.pinned(experiment, host, lambda size: child.ask(experiment, "pin", str(size)))
