"""Work shared out to the ranks, and its results brought together; one process does it all."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


def share(items: Sequence[T], *, equal: bool) -> list[T]:
    """This rank's items. With `equal` every rank has as many, for which the last ones are dealt out twice."""
    if not dist.is_initialized():
        return list(items)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    mine = list(items[rank::ranks])
    if equal and len(mine) < -(-len(items) // ranks):
        mine.append(items[-1])
    return mine


def gathered(value: Any) -> list[Any]:
    """The values of all ranks, in their order, on every rank."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def agreed(value: float, device: torch.device) -> float:
    """Rank 0's value on every rank: clocks differ, and decisions by them must not."""
    if not dist.is_initialized():
        return value
    shared = torch.tensor(value, dtype=torch.float64, device=device)
    dist.broadcast(shared, src=0)
    return float(shared)
