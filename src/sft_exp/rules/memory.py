"""Rules about memory: what the plan says against the profile's cards."""

from collections.abc import Iterator

from sft_exp import memory, memory_advice
from sft_exp.memory import Verdict
from sft_exp.schema import Experiment


def problems(experiment: Experiment) -> Iterator[str]:
    """One sentence where the run would end for want of memory."""
    plan = memory.plan(experiment)
    if plan is None or not experiment.hw.memory_check:
        return
    if plan.verdict is Verdict.too_large:
        yield (
            f"this run needs about {plan.total_gib:.1f} GiB on each card and hw={experiment.hw.name} has "
            f"{plan.memory_gib:g} GiB: {_instead(experiment)}, or start it anyway with hw.memory_check=false."
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
