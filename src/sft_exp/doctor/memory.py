"""Host memory: what is available, shared memory, page-locked memory."""

from collections.abc import Callable
from typing import Any

from sft_exp import host as hosts
from sft_exp.doctor.line import Line, State, fail, judged, ok, skip, warn
from sft_exp.host import GIB, Host
from sft_exp.schema import Device, Experiment

SMALL_PIN = GIB // 4
"""Tried where nothing is offloaded: batches pass through page-locked memory too."""


def ram(experiment: Experiment, host: Host) -> list[Line]:
    """Available memory against what is offloaded."""
    limit = f", limit of the container {host.limit / GIB:.1f}" if host.limit else ""
    need = hosts.offload_bytes(experiment)
    asked = f"; offload takes about {need / GIB:.1f}" if need else ""
    found = f"{host.available / GIB:.1f} of {host.total / GIB:.1f} GiB available{limit}{asked}"
    return judged("host memory", hosts.problems(experiment, host), found)


def shm(experiment: Experiment, host: Host) -> list[Line]:
    """Shared memory; too little fails only where ranks surely exchange through it."""
    if host.shm_free is None:
        return [skip("/dev/shm", "it is not there")]
    sentence = hosts.shm_problem(experiment, host)
    state = State.fail if hosts.through_shm(experiment) else State.warn
    return judged("/dev/shm", [sentence] if sentence else [], f"{host.shm_free / GIB:.1f} GiB free", state)


def locked(experiment: Experiment, host: Host) -> Line:
    """The limit on locked memory, which counts for page-locked offload."""
    if host.locked is None:
        return ok("locked memory", "no limit")
    found = f"at most {_size(host.locked)} per process (ulimit -l)"
    if experiment.zero.pin_memory and hosts.offload_bytes(experiment) > host.locked:
        advice = "ulimit -l unlimited, docker run --ulimit memlock=-1, or zero.pin_memory=false"
        return warn("locked memory", found, advice)
    return ok("locked memory", f"{found}; the run locks none of its own")


def pinned(experiment: Experiment, host: Host, ask: Callable[[int], dict[str, Any]]) -> Line:
    """A real page-locked allocation of what one rank offloads; `ask` makes it in another process."""
    name = "pinned memory"
    if experiment.hw.device is Device.cpu:
        return skip(name, "needs an NVIDIA GPU")
    size = hosts.offload_bytes(experiment) // (experiment.hw.processes or 1) or SMALL_PIN
    if size > host.available:
        return skip(name, f"{_size(size)} would not fit into host memory")
    answer = ask(size)
    if "error" not in answer:
        return ok(name, f"{_size(size)} allocated in {answer['seconds']:.1f} s")
    found = f"{_size(size)} could not be allocated ({answer['error']})"
    if experiment.zero.pin_memory:
        return fail(name, found, "set zero.pin_memory=false")
    return warn(
        name, found, "keep zero.pin_memory=false; if loading data fails too, +train.extra.dataloader_pin_memory=false"
    )


def _size(number: int) -> str:
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{number / 2**20:.1f} MiB"
