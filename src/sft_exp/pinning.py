"""Page-locked memory that DeepSpeed asks for and may not get: the run goes on with ordinary memory."""

from collections.abc import Callable
from typing import Any

import torch


def guard(accelerator: Any, tell: Callable[[str], None]) -> None:
    """Put a `pin_memory` before that of DeepSpeed's accelerator object which never fails; `tell` hears why, once.

    CUDA refuses to page-lock memory on some platforms ("invalid argument") and beyond `ulimit -l`, and torch refuses it
    for a tensor that is on the card already. DeepSpeed lets both end the run.
    """
    pin = accelerator.pin_memory
    told: list[str] = []

    def pin_memory(tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> torch.Tensor:
        if tensor.device.type != "cpu":
            return tensor
        try:
            # Both words came with DeepSpeed 0.19.
            words = {} if make_copy and match_shape else {"make_copy": make_copy, "match_shape": match_shape}
            pinned: torch.Tensor = pin(tensor, **words)
        except RuntimeError as error:
            if not told:
                told.append(str(error).strip().splitlines()[0])
                tell(
                    f"note: page-locked memory was refused ({told[0]}): the run goes on with ordinary memory, "
                    "zero.pin_memory=false saves the attempt"
                )
            return tensor if make_copy or match_shape else tensor.reshape(-1)
        return pinned

    accelerator.pin_memory = pin_memory
