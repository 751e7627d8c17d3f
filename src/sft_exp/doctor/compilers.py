"""Compilers, and which operation of DeepSpeed needs which."""

import re
import subprocess
from collections.abc import Iterable

from sft_exp.doctor.line import Line, judged, ok, skip
from sft_exp.rules import zero as rules
from sft_exp.schema import Experiment

PROGRAMS = ("g++", "ninja", "nvcc")


def version(program: str) -> str | None:
    """Version of a program on the ranks' PATH; None if it is not there."""
    where = rules.find(program)
    if where is None:
        return None
    try:
        done = subprocess.run([where, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "that does not start"
    found = re.search(r"release (\d+\.\d+)|(\d+\.\d+(?:\.\d+)?)", done.stdout)
    return found[1] or found[2] if found else "of unknown version"


def lines(experiment: Experiment) -> list[Line]:
    """Lines on this machine's compilers."""
    have = [f"{name} {found}" for name in PROGRAMS if (found := version(name))]
    return judge(experiment, ", ".join(have) or "no compiler", rules.programs(experiment))


def judge(experiment: Experiment, have: str, sentences: Iterable[str]) -> list[Line]:
    """What is compiled and what is missing for it."""
    if experiment.zero.stage == 0:
        return [skip("compilers", f"zero=0 compiles nothing ({have})")]
    needed = rules.compiled(experiment)
    if not needed:
        return [ok("compilers", f"{have}; nothing is compiled for zero={experiment.zero.stage} without offload")]
    return judged(
        "compilers", sentences, f"{have}; g++ and ninja compile DeepSpeed's {' and '.join(needed)}, nvcc is not needed"
    )
