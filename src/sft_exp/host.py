"""Memory of this host as a process may use it, and what an offloaded run needs of it."""

import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sft_exp import memory_host
from sft_exp.memory_facts import facts
from sft_exp.schema import Device, Experiment

GIB = 2**30
MARGIN = 1.1
"""Share of the estimate that must be available: libraries and page cache need some too."""
SHM_BYTES_PER_RANK = GIB // 4
"""Shared memory with which NCCL's and DeepSpeed's buffers of one rank fit; Docker gives 64 MiB to a container."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """Bytes of memory; None where a value cannot be read or there is no limit."""

    total: int
    available: int
    """What can be had without swapping, limits of the container included."""
    limit: int | None = None
    """Memory limit of the container (cgroup v1 or v2)."""
    shm_total: int | None = None
    shm_free: int | None = None
    locked: int | None = None
    """Largest page-locked memory of a process (ulimit -l)."""


def read(root: Path = Path("/")) -> Host:
    """Read the kernel's files below `root`."""
    numbers = dict(re.findall(r"^(\w+):\s+(\d+) kB", (root / "proc/meminfo").read_text(encoding="ascii"), re.M))
    total, available = int(numbers["MemTotal"]) * 1024, int(numbers["MemAvailable"]) * 1024
    limit, used = _cgroup(root)
    if limit is not None and limit < total:
        available = min(available, max(0, limit - used))
    else:
        limit = None
    shm_total, shm_free = _shm(root)
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Host(
        total=total, available=available, limit=limit, shm_total=shm_total, shm_free=shm_free,
        locked=None if soft == resource.RLIM_INFINITY else soft,
    )  # fmt: skip


def _cgroup(root: Path) -> tuple[int | None, int]:
    """Tightest memory limit and what is used of it, without file cache that the kernel would give back."""
    found = []
    for base, limit, used, cache in (
        ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for folder in _cgroup_folders(root, root / base, v1=base.endswith("memory")):
            most = _number(folder / limit)
            if most is not None:
                found.append((most, max(0, (_number(folder / used) or 0) - _statistic(folder / "memory.stat", cache))))
    return min(found, key=lambda pair: pair[0] - pair[1]) if found else (None, 0)


def _cgroup_folders(root: Path, base: Path, *, v1: bool) -> Iterator[Path]:
    """The process's group and those above it; inside a container the mount itself is the group."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    paths = [line.split(":", 2)[2] for line in lines if ("memory" in line.split(":")[1]) == v1]
    for path in paths or ["/"]:
        folder = base / path.strip("/")
        yield from (part for part in (folder, *folder.parents) if part == base or base in part.parents)


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # v2 writes `max` where there is no limit
        return None


def _statistic(file: Path, name: str) -> int:
    try:
        found = re.search(rf"^{name} (\d+)$", file.read_text(encoding="ascii"), re.M)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _shm(root: Path) -> tuple[int | None, int | None]:
    try:
        state = os.statvfs(root / "dev/shm")
    except OSError:
        return None, None
    return state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize


def offload_bytes(experiment: Experiment) -> int:
    """Host memory that offloading takes on this machine, over all ranks; 0 without it or for an unknown shape."""
    known = facts(experiment)
    return int(memory_host.offloaded(known)) if known else 0


def problems(experiment: Experiment, host: Host) -> Iterator[str]:
    """One sentence if the host's memory is too small for what is offloaded to it."""
    need = offload_bytes(experiment) * MARGIN
    if experiment.hw.memory_check and need > host.available:
        limit = f" (the container's limit is {host.limit / GIB:.1f} GiB)" if host.limit else ""
        yield (
            f"zero={experiment.zero.stage}_offload needs about {need / GIB:.1f} GiB of host memory and "
            f"{host.available / GIB:.1f} GiB are available{limit}: use adapter=lora, a smaller model, or zero=3 "
            "without offload on more cards; or start it anyway with hw.memory_check=false."
        )


def shm_problem(experiment: Experiment, host: Host) -> str | None:
    """One sentence if ranks that exchange through /dev/shm would find too little of it."""
    processes = experiment.hw.processes or 1
    need = SHM_BYTES_PER_RANK * processes
    if processes == 1 or host.shm_free is None or host.shm_free >= need:
        return None
    return (
        f"/dev/shm has {host.shm_free / GIB:.2f} GiB free and {processes} ranks may need {need / GIB:.2f} GiB: start "
        "the container with --shm-size=8g or --ipc=host."
    )


def through_shm(experiment: Experiment) -> bool:
    """Whether ranks surely exchange through /dev/shm: cards without peer-to-peer copies, DeepSpeed on the CPU."""
    if experiment.hw.device is Device.cuda:
        return experiment.hw.env.get("NCCL_P2P_DISABLE") == "1"
    return experiment.zero.stage > 0
