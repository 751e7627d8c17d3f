"""Values that arrive wrong between ranks: found before the first step, since training on them raises no error."""

import torch
import torch.distributed as dist

from sft_exp.doctor import allreduce_worker
from sft_exp.errors import ConfigError


def require(device: torch.device) -> None:
    """Exchange known values over all ranks and between each two of them. Raises ConfigError where one is wrong."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.new_group()  # of its own: NCCL keeps buffers for each pair of cards as long as the group lives
    sums, sources = allreduce_worker.wrong(rank, world, device, group)
    dist.destroy_process_group(group)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if sums or sources:
        what = f"copies of rank {', '.join(map(str, sources))}" if sources else "sums over all ranks"
        raise ConfigError(
            f"{what} arrive wrong at rank {rank}, which would train garbage: run `python -m sft_exp doctor ...` with "
            "the same overrides, which names the card, and leave it out with hw.devices, or try "
            "+hw.env.NCCL_P2P_DISABLE=1."
        )
