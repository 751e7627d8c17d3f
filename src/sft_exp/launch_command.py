"""`launch-command`: the command that starts the ranks of a run on each machine, and nothing that runs."""

import shlex

from sft_exp import check, launch, machines, rundir
from sft_exp.machine import look
from sft_exp.request import Request
from sft_exp.resolve import resolve


def show(request: Request) -> None:
    """Print one command per machine. Raises ConfigError for a request that cannot run."""
    machine = look()
    experiment = resolve(request.experiment, machine)
    check.refuse(check.check(experiment, machine, plan=True))
    folder = rundir.planned(experiment)
    hw = experiment.hw
    port = machines.common_port(hw) or launch.PLAN_PORT
    for number in range(hw.machines):
        label = f"machine {number}: " if hw.machines > 1 else ""
        print(f"{label}{shlex.join(launch.command(experiment, folder, port, number=number))}")
