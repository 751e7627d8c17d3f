"""A collective over the chosen devices whose values are checked, in real ranks, with and without the profile's
environment: a card whose peer-to-peer copies are wrong trains garbage without an error."""

import dataclasses
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sft_exp import launch, rundir
from sft_exp.doctor.line import Line, fail, ok, skip, warn
from sft_exp.launch import Processes
from sft_exp.request import Request
from sft_exp.rundir import RunDir
from sft_exp.schema import Device, Experiment

LIMIT_S = 60.0
"""For one attempt: importing torch and starting NCCL take most of it, the collectives a second."""
GRACE_S = 3.0
MODULE = "sft_exp.doctor.allreduce_worker"
NAME = "all-reduce"
FASTER = 1.3
"""How many times faster the bare attempt must be to be worth a word."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one attempt ended."""

    problem: str | None
    """What was wrong; None if every value was right."""
    gbs: float = 0.0
    """Bus bandwidth of the largest all-reduce in GB/s, as nccl-tests counts it."""


def lines(experiment: Experiment, limit_s: float = LIMIT_S) -> list[Line]:
    """One or two attempts, and what follows from them."""
    hw = experiment.hw
    if (hw.processes or 1) == 1:
        return [skip(NAME, "one process: nothing travels between ranks")]
    if hw.device is Device.cuda and len(hw.devices or []) != hw.processes:
        return [skip(NAME, "the chosen cards are not there")]
    profile = attempt(experiment, os.environ, limit_s)
    bare = None
    if hw.device is Device.cuda and any(name.startswith("NCCL_") for name in hw.env):
        # What the shell sets stays: it may be there for the sake of the machine.
        plain = dataclasses.replace(experiment, hw=dataclasses.replace(hw, env={}))
        bare = attempt(plain, os.environ, limit_s)
    return judge(experiment, profile, bare)


def judge(experiment: Experiment, profile: Outcome, bare: Outcome | None) -> list[Line]:
    """Lines on the attempt with the profile's environment and, where it sets anything for NCCL, on the one without."""
    name, ranks = experiment.hw.name, experiment.hw.processes
    if profile.problem:
        advice = "leave that card out with hw.devices=[...]"
        if experiment.hw.device is Device.cpu:
            advice = "try hw=cpu, which is one process"
        elif bare is not None and bare.problem is None:
            advice = "use hw=auto: without the profile's NCCL variables every value is right"
        elif experiment.hw.env.get("NCCL_P2P_DISABLE") != "1":
            advice = f"try +hw.env.NCCL_P2P_DISABLE=1, or {advice}"
        return [fail(NAME, f"with the environment of hw={name}: {profile.problem}", advice)]
    speed = f"{ranks} ranks, every value right, {profile.gbs:.1f} GB/s"
    if bare is None:
        return [ok(NAME, speed)]
    if bare.problem:
        found = f"{speed} with the environment of hw={name}; without it: {bare.problem}"
        return [warn(NAME, found, "keep the profile's environment")]
    both = f"{speed} with the environment of hw={name}, {bare.gbs:.1f} GB/s without"
    if bare.gbs > FASTER * profile.gbs:
        return [warn(NAME, both, "hw=auto, without the profile's NCCL variables, is faster and as right here")]
    return [ok(NAME, both)]


def attempt(experiment: Experiment, base: Mapping[str, str], limit_s: float) -> Outcome:
    """Start the ranks as a run would, wait at most `limit_s`, end what is left, read what each rank saw."""
    with tempfile.TemporaryDirectory(prefix="sft_exp-doctor-") as folder:
        run = RunDir(Path(folder))
        for part in (run.logs, run.pids):
            part.mkdir()
        rundir.write_json(run.request, Request(experiment=experiment))
        port, processes = launch.free_port(), Processes(run)
        try:
            with launch.stop_on_signal():
                argv = launch.command(experiment, run.path, port, module=MODULE)
                processes.start("launcher", argv, launch.environment(experiment, base, port))
                _wait(processes, limit_s)
                code = processes.exit_code("launcher")
        finally:
            processes.end(GRACE_S)
        return read(experiment, run, code, limit_s)


def _wait(processes: Processes, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while processes.exit_code("launcher") is None and time.monotonic() < deadline:
        time.sleep(0.05)


def read(experiment: Experiment, run: RunDir, code: int | None, limit_s: float) -> Outcome:
    """Outcome of an ended attempt; `code` is None if it had to be ended."""
    names = device_names(experiment)
    answers = {rank: run.path / f"rank{rank}.json" for rank in range(len(names))}
    results = {rank: rundir.read_json(file) for rank, file in answers.items() if file.exists()}
    if wrong := blame(results, names):
        return Outcome(problem=wrong)
    if len(results) == len(names) and code == 0:
        return Outcome(problem=None, gbs=min(float(result["gbs"]) for result in results.values()))
    silent = ", ".join(names[rank] for rank in answers if rank not in results)
    if code is None:
        return Outcome(problem=f"no answer within {limit_s:.0f} s from {silent or 'the launcher'}")
    return Outcome(problem=f"{silent or 'the launcher'} ended with an error ({_last_error(run)})")


def device_names(experiment: Experiment) -> list[str]:
    """What each rank runs on, as a user knows it."""
    hw = experiment.hw
    if hw.device is Device.cuda and hw.devices:
        return [f"card {index}" for index in hw.devices]
    return [f"rank {rank}" for rank in range(hw.processes or 1)]


def blame(results: Mapping[int, Mapping[str, Any]], names: list[str]) -> str | None:
    """The device that most wrong copies have in common, with their number; None if every value was right."""
    pairs = [(int(source), rank) for rank, result in results.items() for source in result["wrong"]]
    sums = [names[rank] for rank, result in results.items() if result["wrong_sums"]]
    if not pairs:
        return f"wrong sums on {', '.join(sums)}" if sums else None
    counts = Counter(rank for pair in pairs for rank in pair).most_common()
    guilty = [rank for rank, count in counts if count == counts[0][1]]
    listed = ", ".join(f"{names[source]} to {names[rank]}" for source, rank in sorted(pairs))
    who = names[guilty[0]] if len(guilty) == 1 else " or ".join(names[rank] for rank in sorted(guilty))
    return f"copies of {who} arrive wrong ({listed})"


def _last_error(run: RunDir) -> str:
    """Last line of a log that names an error."""
    found = [
        line.strip()
        for log in sorted(run.logs.glob("*.log"))
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if "Error" in line and "ChildFailedError" not in line
    ]
    return found[0].rpartition("]: ")[2][:200] if found else "no message"
