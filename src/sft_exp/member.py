"""A machine that is not the first: it starts and watches its own ranks, in the run folder of the first."""

import os
import time
from contextlib import suppress
from pathlib import Path

from sft_exp import check, faults, launch, machines
from sft_exp import request as requests
from sft_exp.errors import ConfigError, RunFailed, SftExpError
from sft_exp.launch import Processes
from sft_exp.machine import Machine
from sft_exp.machines import Peer
from sft_exp.request import Request
from sft_exp.resolve import resolve
from sft_exp.rundir import RunDir
from sft_exp.schema import Experiment


def run(request: Request, machine: Machine, number: int) -> RunDir:
    """Run this machine's ranks to their end. Raises ConfigError, RunFailed or RunStopped."""
    hw = request.experiment.hw
    with launch.stop_on_signal():
        problems = check.check(resolve(request.experiment, machine), machine).problems
        if problems:
            _excuse(hw.rendezvous, number, request.overrides, problems)
            raise ConfigError(*problems)
        print(f"machine {number} of {hw.machines}: waits for machine 0 at {hw.rendezvous}", flush=True)
        first = machines.join(str(hw.rendezvous), number, request.overrides)
    try:
        with launch.stop_on_signal():
            return _take_part(first, machine, number)
    except SftExpError as error:
        first.send(failed=f"machine {number}: {error}")
        raise
    finally:
        first.close()


def _excuse(rendezvous: str | None, number: int, overrides: list[str], problems: list[str]) -> None:
    """Tell the first machine, if it waits, why it waits in vain."""
    if machines.is_address(rendezvous):
        with suppress(RunFailed):
            first = machines.join(str(rendezvous), number, overrides, "\n".join(problems), machines.FAREWELL_S)
            with suppress(RunFailed):
                first.expect("folder", machines.FAREWELL_S)
            first.close()


def _take_part(first: Peer, machine: Machine, number: int) -> RunDir:
    run = RunDir(Path(first.expect("folder", machines.GATHER_S)))
    if not run.request.exists():
        raise ConfigError(
            f"machine {number} does not see the run folder {run.path}: set outputs to a folder on a file system that "
            "all machines share."
        )
    # What the first machine has resolved decides, not what an `auto` would have become here.
    experiment = requests.read(run.request).experiment
    check.refuse(check.check(experiment, machine))
    first.send(ready="")
    print(f"machine {number} of {experiment.hw.machines}: {run.path}", flush=True)
    processes = Processes(run)
    try:
        _start(processes, experiment, run, number)
        _follow(run, processes, first, faults.launcher(number))
    finally:
        processes.end()
    return run


def _start(processes: Processes, experiment: Experiment, run: RunDir, number: int) -> None:
    port = machines.address(str(experiment.hw.rendezvous))[1] + 1
    argv = launch.command(experiment, run.path, port, number=number)
    processes.start(faults.launcher(number), argv, launch.environment(experiment, os.environ, port))


def _follow(run: RunDir, processes: Processes, first: Peer, name: str) -> None:
    """Return when the first machine says that the run is finished."""
    while first.last("end") is None:
        gone = first.lost()
        code = processes.exit_code(name)
        if code:
            raise faults.to_error(run, name, code)
        if gone and first.last("end") is None:
            raise RunFailed(gone)
        time.sleep(0.1)
    if sentence := first.refusal():
        raise RunFailed(sentence)
