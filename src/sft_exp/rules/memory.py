"""Rules about memory: what the plan says against the profile's cards and this machine's host memory."""

from collections.abc import Iterator

from sft_exp import memory, memory_advice
from sft_exp.machine import Machine
from sft_exp.memory import Verdict
from sft_exp.schema import Experiment

HOST_SHARE = 0.95
"""Part of the host's memory that a run may take."""


def problems(experiment: Experiment, machine: Machine) -> Iterator[str]:
    """One sentence where the run would end for want of memory."""
    plan = memory.plan(experiment)
    if plan is None or not experiment.hw.memory_check:
        return
    if plan.verdict is Verdict.too_large:
        yield (
            f"this run needs about {plan.total_gib:.1f} GiB on each card and hw={experiment.hw.name} has "
            f"{plan.memory_gib:g} GiB: {_instead(experiment)}, or start it anyway with hw.memory_check=false."
        )
    have = machine.memory_gib
    if experiment.zero.offload_optimizer and have is not None and plan.host_gib > have * HOST_SHARE:
        yield (
            f"offload needs about {plan.host_gib:.0f} GiB of host memory and this machine has {have:.0f} GiB: use "
            "zero=3 over more cards, or adapter=lora, or start it anyway with hw.memory_check=false."
        )


def warnings(experiment: Experiment) -> Iterator[str]:
    """One sentence where it is not sure that the run fits."""
    plan = memory.plan(experiment)
    if plan is not None and plan.verdict is Verdict.tight:
        yield (
            f"memory is tight: this run needs about {plan.total_gib:.1f} GiB (give or take {memory.ERROR:.0%}) of the "
            f"{plan.memory_gib:g} GiB of hw={experiment.hw.name}; safer: {_instead(experiment)}."
        )


def _instead(experiment: Experiment) -> str:
    advice = memory_advice.advise(experiment, limit=1)
    return f"use {advice[0]}" if advice else "use a smaller model or more cards (no change of the run makes it fit)"
