"""What a sweep will take: time, from steps that runs like its jobs have measured, and disk."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sft_exp import rundir, sizes
from sft_exp.machine import Machine
from sft_exp.metrics import read_rows
from sft_exp.request import flatten, to_plain
from sft_exp.resolve import resolve
from sft_exp.schema import Device, Experiment
from sft_exp.sweeps.view import clock

GIB = 2**30
DECIDING = (
    "model.path", "model.shape.", "model.gguf", "model.dtype", "model.attention", "dataset.max_length", "adapter.kind",
    "adapter.r", "adapter.target_modules", "zero.", "hw.device", "hw.processes", "hw.capability", "hw.threads",
    "train.global_batch", "train.micro_batch", "train.precision", "train.gradient_checkpointing", "train.packing",
    "train.optimizer",
)  # fmt: skip
"""Keys that decide how long a step takes: runs that are equal in them are as fast."""
MEASURED_STEPS = 2
"""Logged rows that are enough for a guess; the first holds start-up costs."""


@dataclass(frozen=True)
class Speed:
    """What was measured of runs of one kind."""

    step_seconds: float
    steps: int


def words(experiments: Sequence[Experiment], machine: Machine) -> str:
    """One line on jobs, time and disk of composed experiments."""
    resolved = [resolve(each, machine) for each in experiments]
    disk = sum(map(sizes.disk_bytes, resolved))
    known = measured(Path(resolved[0].outputs))
    seconds = [_seconds(each, known) for each in resolved]
    found = [each for each in seconds if each is not None]
    at_once = parallel(resolved, machine)
    time = "time unknown: no run like these has measured a step yet"
    if found:
        total = sum(found) / len(found) * len(resolved) / at_once
        time = f"about {clock(total)} of training, by the steps of earlier runs like {len(found)} of them"
    return f"{len(resolved)} jobs, {at_once} at a time; {time}; up to {size(disk)} on disk"


def size(count: int) -> str:
    """Bytes in GiB, or in MiB if they are few."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"


def parallel(resolved: Sequence[Experiment], machine: Machine) -> int:
    """Jobs that run at a time."""
    hw, per_device = resolved[0].hw, resolved[0].sweep.per_device
    if hw.device is Device.cpu:
        return min(len(resolved), per_device)
    return max(1, min(len(resolved), len(machine.usable()) // (hw.processes or 1) * per_device))


def measured(outputs: Path) -> dict[str, Speed]:
    """Newest measurement of each kind of run below `outputs`."""
    found: dict[str, Speed] = {}
    for file in sorted([*outputs.glob("*/*/config.json"), *outputs.glob("*/*-sweep/*/config.json")]):
        rows = [row for row in read_rows(file.with_name("metrics.jsonl"))[0] if "perf/step_seconds" in row]
        if len(rows) >= MEASURED_STEPS:
            each = statistics.median(float(row["perf/step_seconds"]) for row in rows[1:])
            found[kind(rundir.read_json(file))] = Speed(each, int(rows[-1]["train/total_steps"]))
    return found


def kind(config: dict[str, Any]) -> str:
    """Equal for resolved configurations whose steps take equally long."""
    flat = flatten(config)
    return json.dumps({key: value for key, value in flat.items() if key.startswith(DECIDING)}, sort_keys=True)


def _seconds(experiment: Experiment, known: dict[str, Speed]) -> float | None:
    speed = known.get(kind(to_plain(experiment)))
    return None if speed is None else speed.step_seconds * (experiment.train.max_steps or speed.steps)
