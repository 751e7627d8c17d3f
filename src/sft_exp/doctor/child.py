"""Checks that need torch, made in a child process with the ranks' environment and a time limit."""

import json
import os
import subprocess
import sys
from typing import Any

from sft_exp import launch
from sft_exp.schema import Experiment

LIMIT_S = 60.0
"""Importing torch from a cold disk takes most of it."""


def ask(experiment: Experiment, *words: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Answer of `sft_exp.doctor.probe`; {"error": ...} if it fails or takes too long."""
    env = launch.environment(experiment, os.environ, launch.free_port())
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sft_exp.doctor.probe", *words], env=env, capture_output=True, text=True,
            timeout=limit_s, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {limit_s:.0f} s"}
    answer = done.stdout.strip().rpartition("\n")[2]
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        return {"error": last or f"ended with code {done.returncode}"}
    found = json.loads(answer)
    assert isinstance(found, dict)
    return found
