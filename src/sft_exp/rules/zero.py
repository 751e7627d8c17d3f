"""Rules about DeepSpeed."""

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from sft_exp import zero, zero_extra, zero_file
from sft_exp.schema import Device, Experiment, Launcher


def problems(experiment: Experiment) -> Iterator[str]:
    """One sentence for each reason why the ZeRO stage cannot run as asked."""
    stage = experiment.zero
    if sentence := zero_file.problem(stage):
        yield sentence
    if not 0 <= stage.stage <= 3:
        yield f"zero.stage={stage.stage} is not a stage: use 0, 1, 2 or 3."
    if stage.stage == 0:
        if stage.offload_optimizer or stage.offload_param or stage.extra or stage.pin_memory or stage.json:
            instead = "zero=1, 2 or 3" if stage.extra or stage.json else "zero=2_offload or 3_offload"
            yield (
                f"zero=0 runs without DeepSpeed, so offload, pin_memory, zero.json and zero.extra have no effect: use "
                f"{instead}, or leave them out."
            )
        if experiment.hw.launcher is Launcher.deepspeed:
            yield "hw.launcher=deepspeed needs a ZeRO stage: use zero=1, 2 or 3, or hw.launcher=torchrun."
        return
    if stage.offload_param and stage.stage != 3:
        yield f"zero.offload_param needs stage 3 and zero.stage is {stage.stage}: use zero=3_offload."
    yield from programs(experiment)
    if importlib.util.find_spec("deepspeed") is None:
        yield f"zero={stage.stage} needs the package deepspeed: pip install deepspeed."
    for key in ("reduce_bucket_size", "allgather_bucket_size"):
        if getattr(stage, key) < 1:
            yield f"zero.{key}={getattr(stage, key)} must be at least 1."
    yield from zero.conflicts(experiment)
    yield from zero_extra.problems(stage.extra)


def compiled(experiment: Experiment) -> list[str]:
    """Extensions that DeepSpeed compiles for this run, one to two minutes each at their first use.

    Stages 2 and 3 on cards without offload were seen to compile nothing. There is never an `optimizer` block, whose
    fused Adam would be the only one to need nvcc.
    """
    if experiment.zero.stage == 0:
        return []
    found = ["shared-memory collectives"] if experiment.hw.device is Device.cpu else []
    return found + (["CPU Adam"] if experiment.zero.offload_optimizer else [])


def programs(experiment: Experiment) -> Iterator[str]:
    """One sentence for each program that DeepSpeed compiles with and that is not there."""
    for program in ("g++", "ninja") if compiled(experiment) else ():
        if find(program) is None:
            yield (
                f"DeepSpeed compiles small extensions and {program} is not on PATH: install it (apt install g++; pip "
                "install ninja)."
            )


def find(program: str) -> str | None:
    """A program as the ranks find it: on PATH or in this environment."""
    own = Path(sys.prefix) / "bin" / program
    return shutil.which(program) or (str(own) if own.exists() else None)
