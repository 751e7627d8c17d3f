"""A job made ready to start: its share of the machine, its devices, and whether it starts anew or goes on."""

import dataclasses
import fcntl
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from sft_exp import descendants, rundir
from sft_exp.machine import Machine
from sft_exp.request import Request
from sft_exp.resolve import resolve
from sft_exp.schema import Device, Experiment, Hw
from sft_exp.sweeps import slots
from sft_exp.sweeps.job import OVER, Job

RANKS_GRACE_S = 20.0
"""Seconds that ranks of a killed sweep have to end by themselves."""


def shared(experiment: Experiment, machine: Machine) -> Experiment:
    """The experiment with its share of the machine: memory of a card that jobs share, threads on the CPU."""
    hw, per_device = resolve(experiment, machine).hw, experiment.sweep.per_device
    own = dataclasses.replace(experiment.hw)
    if hw.device is Device.cpu and own.threads is None:
        own.threads = slots.threads(machine.cores, hw, per_device)
    elif hw.device is Device.cuda and hw.memory_gib:
        own.memory_gib = hw.memory_gib / per_device
    return dataclasses.replace(experiment, hw=own)


def placed(hw: Hw, devices: Sequence[int]) -> Hw:
    """The profile with the cards that the job was given."""
    cards = [device for device in devices if device != slots.CPU]
    return dataclasses.replace(hw, devices=cards) if cards else hw


def to_start(job: Job, devices: Sequence[int], port: int | None, parent: str | None) -> Request:
    """What the job's process is to do: go on from its newest checkpoint, else train from the beginning."""
    assert job.request is not None
    experiment = job.request.experiment
    experiment = dataclasses.replace(experiment, hw=placed(experiment.hw, devices))
    request = dataclasses.replace(
        job.request, experiment=experiment, folder=job.folder, parent_run_id=parent, port=port
    )
    if not job.run.path.exists():
        return request
    if job.run.newest_checkpoint() is None:
        shutil.rmtree(job.run.path)  # an attempt with nothing to go on from; a record of it stays in MLflow
        return request
    changes = [f"hw.devices={experiment.hw.devices}"] if experiment.hw.devices else []
    again = dataclasses.replace(experiment, resume=job.folder)
    return dataclasses.replace(request, experiment=again, overrides=changes)


def recall(job: Job) -> None:
    """Set the state of a job whose sweep was killed by what its folder says."""
    status = rundir.read_json(job.run.status) if job.run.status.exists() else {}
    if status.get("state") in OVER:
        job.end(str(status["state"]), str(status.get("reason", "")))
        job.seconds += float(status.get("ended", 0)) - float(status.get("started", 0))
    elif job.run.result.exists():
        job.end("finished")  # it was killed after its last step
    elif job.state == "running":
        job.end("stopped", "its sweep was killed")


def await_end(job: Job, lock: Path) -> None:
    """Return when nothing of the job runs any more: its sweep may have been killed just now."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # held by the job's own process
    deadline = time.monotonic() + RANKS_GRACE_S
    while ranks := _ranks(job):
        if time.monotonic() > deadline:
            descendants.terminate(ranks, signal.SIGKILL)
        time.sleep(0.1)


def _ranks(job: Job) -> list[int]:
    """Ranks of the job that live here; a process that has got the number of one since is another's."""
    pids = [int(file.name) for file in job.run.pids.glob("*") if file.name.isdecimal()]  # not PID.machine1
    return [pid for pid in pids if job.folder.encode() in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
