"""The memory plan as text and as a record, and the measured peak beside it."""

from typing import Any

from sft_exp import memory, memory_advice, rundir
from sft_exp.memory import CONTEXT_GIB, ERROR, GIB, MemoryPlan, Verdict
from sft_exp.rundir import RunDir
from sft_exp.schema import Experiment

NO_PLAN = "it is for GPUs and models whose shape is known"


def lines(experiment: Experiment) -> list[str]:
    """What `plan` prints: components, total, verdict and, where it does not surely fit, what would."""
    plan = memory.plan(experiment)
    if plan is None:
        return [f"not planned: {NO_PLAN}"]
    rows = [*plan.parts.items(), ("CUDA context", CONTEXT_GIB * GIB)]
    text = [f"{name:<20}{size / GIB:>9.2f} GiB" for name, size in rows if size / GIB >= 0.005]
    text.append(f"{'per GPU':<20}{plan.total_gib:>9.2f} GiB at its peak: {plan.moment}")
    text.append(f"{'host, all ranks':<20}{plan.host_gib:>9.2f} GiB: {_host(plan)}")
    text.append(verdict(experiment, plan))
    if plan.verdict in (Verdict.tight, Verdict.too_large):
        text += [f"  {advice}" for advice in memory_advice.advise(experiment)]
    return text


def verdict(experiment: Experiment, plan: MemoryPlan) -> str:
    """One line: does it fit, and how sure is that."""
    if plan.verdict is Verdict.unknown:
        return "whether it fits is unknown: set hw.memory_gib"
    head = f"{plan.verdict.value}: {plan.total_gib:.1f} of {plan.memory_gib:g} GiB (the plan may be {ERROR:.0%} off)"
    return head if plan.verdict is Verdict.fits else f"{head}; what fits, cheapest first:"


def _host(plan: MemoryPlan) -> str:
    return ", ".join(f"{name} {size / GIB:.1f}" for name, size in plan.host.items())


def record(experiment: Experiment) -> dict[str, Any] | None:
    """The plan for `record.json`, in GiB."""
    plan = memory.plan(experiment)
    if plan is None:
        return None
    return {
        "parts_gib": {name: round(size / GIB, 3) for name, size in plan.parts.items()},
        "host_gib": {name: round(size / GIB, 3) for name, size in plan.host.items()},
        "moment": plan.moment,
        "allocated_gib": round(plan.allocated_gib, 3),
        "total_gib": round(plan.total_gib, 3),
        "verdict": plan.verdict.value,
    }


def compare(experiment: Experiment, run: RunDir) -> None:
    """Write what was planned for torch's allocator, and the plan's error, into `result.json`."""
    plan, result = memory.plan(experiment), rundir.read_json(run.result)
    if plan is None or not result.get("peak_memory_gib"):
        return
    result["planned_memory_gib"] = round(plan.allocated_gib, 3)
    result["memory_error"] = round(plan.allocated_gib / float(result["peak_memory_gib"]) - 1, 4)
    result["memory_error_percent"] = round(100 * result["memory_error"], 2)
    rundir.write_json(run.result, result)
