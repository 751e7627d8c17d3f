"""A machine that is not the first: it starts and watches its own ranks, in the run folder of the first."""

import os
import time
from pathlib import Path

from sft_exp import check, faults, launch, machines
from sft_exp.errors import ConfigError, RunFailed
from sft_exp.launch import Processes
from sft_exp.machine import Machine
from sft_exp.request import Request
from sft_exp.resolve import resolve
from sft_exp.rundir import RunDir


def run(request: Request, machine: Machine, number: int) -> RunDir:
    """Run this machine's ranks to their end. Raises ConfigError, RunFailed or RunStopped."""
    experiment = resolve(request.experiment, machine)
    check.refuse(check.check(experiment, machine))
    rendezvous = str(experiment.hw.rendezvous)
    with launch.stop_on_signal():
        first = machines.join(rendezvous, number, request.overrides)
        run = RunDir(Path(first.expect("folder", machines.GATHER_S)))
        problem = _unshared(run, number)
        first.send(ready=problem)
        if problem:
            raise ConfigError(problem)
        print(f"machine {number} of {experiment.hw.machines}: {run.path}", flush=True)
        processes = Processes(run)
        name = f"launcher{number}"
        port = machines.address(rendezvous)[1] + 1
        try:
            argv = launch.command(experiment, run.path, port, number=number)
            processes.start(name, argv, launch.environment(experiment, os.environ, port))
            _follow(run, processes, first, name, number)
        finally:
            processes.end()
            first.close()
    return run


def _unshared(run: RunDir, number: int) -> str:
    if run.request.exists():
        return ""
    return (
        f"machine {number} does not see the run folder {run.path}: set outputs to a folder on a file system that all "
        "machines share."
    )


def _follow(run: RunDir, processes: Processes, first: machines.Peer, name: str, number: int) -> None:
    """Return when the first machine says that the run is finished."""
    while (outcome := first.last("end")) is None:
        if sentence := first.lost():
            raise RunFailed(sentence)
        code = processes.exit_code(name)
        if code:
            error = faults.to_error(run, name, code)
            first.send(failed=f"machine {number}: {error}")
            raise error
        time.sleep(0.1)
    if outcome != "finished":
        raise RunFailed(f"the run on machine 0 {outcome}: {first.last('message')}")
