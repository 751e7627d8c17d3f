"""`python -m sft_exp.doctor.allreduce_worker FOLDER`: one rank of the value check."""

import datetime
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sft_exp import request, rundir
from sft_exp.descendants import die_with_parent
from sft_exp.rundir import RunDir
from sft_exp.schema import Device

SIZES = (2**10, 2**18, 2**24)
"""Elements per message: NCCL takes another protocol for each."""
PERIOD = 1021
"""Values repeat after a prime number of elements, so that shifted copies differ; all sums are exact in fp32."""
ROUNDS = 20


def pattern(size: int, rank: int, device: torch.device) -> torch.Tensor:
    """What a rank sends, (size,)."""
    return (torch.arange(size, device=device) % PERIOD + rank).float()


def wrong_sums(size: int, rank: int, world: int, device: torch.device, group: Any = None) -> int:
    """Elements of a summed message that differ from what arithmetic says."""
    message = pattern(size, rank, device)
    dist.all_reduce(message, group=group)
    expected = pattern(size, 0, device) * world + world * (world - 1) // 2
    return int((message != expected).sum())


def wrong_sources(size: int, rank: int, world: int, device: torch.device, group: Any = None) -> set[int]:
    """Ranks whose message to this one arrived changed; each pair exchanges directly."""
    share = pattern(size, rank, device)
    received = torch.zeros(world * size, device=device)
    dist.all_to_all_single(received, share.repeat(world), group=group)
    parts = received.split(size)
    return {
        source for source, part in enumerate(parts) if source != rank and not part.equal(pattern(size, source, device))
    }


def bandwidth(size: int, world: int, device: torch.device) -> float:
    """Bus bandwidth in GB/s: each byte crosses 2 (n-1) / n links."""
    message = torch.zeros(size, device=device)
    dist.all_reduce(message)
    _wait(device)
    started = time.perf_counter()
    for _ in range(ROUNDS):
        dist.all_reduce(message)
    _wait(device)
    seconds = (time.perf_counter() - started) / ROUNDS
    return size * 4 * 2 * (world - 1) / world / seconds / 1e9


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def exchange(rank: int, world: int, device: torch.device) -> dict[str, Any]:
    """What this rank saw."""
    sums, sources = wrong(rank, world, device)
    return {"wrong_sums": sums, "wrong": sources, "gbs": bandwidth(_sizes(device)[-1], world, device)}


def wrong(rank: int, world: int, device: torch.device, group: Any = None) -> tuple[int, list[int]]:
    """Wrong elements of sums, and ranks whose copies arrive wrong here, over messages of all sizes."""
    sizes = _sizes(device)
    sources: set[int] = set().union(*(wrong_sources(size, rank, world, device, group) for size in sizes))
    return sum(wrong_sums(size, rank, world, device, group) for size in sizes), sorted(sources)


def _sizes(device: torch.device) -> tuple[int, ...]:
    return SIZES if device.type == "cuda" else SIZES[:2]


def main() -> None:
    """Join, exchange, write `rankN.json`."""
    die_with_parent()
    run, rank, world = RunDir(Path(sys.argv[1])), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    (run.pids / str(os.getpid())).touch()
    cuda = request.read(run.request).experiment.hw.device is Device.cuda
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if cuda else "gloo", timeout=datetime.timedelta(minutes=2), device_id=device if cuda else None
    )
    rundir.write_json(run.path / f"rank{rank}.json", exchange(rank, world, device))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
