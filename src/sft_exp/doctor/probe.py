"""`python -m sft_exp.doctor.probe build|pin BYTES`: asks torch, answers with one line of JSON."""

import json
import sys
import time
from typing import Any


def build() -> dict[str, Any]:
    """Architectures that torch has kernels for, and whether it can use a card."""
    import torch

    return {"architectures": torch.cuda.get_arch_list(), "available": torch.cuda.is_available()}


def pin(size: int) -> dict[str, Any]:
    """Page-lock `size` bytes and write to their ends. Seconds it took, or the error."""
    import torch

    started = time.monotonic()
    try:
        block = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        block[0] = block[-1] = 1
    except RuntimeError as error:
        return {"error": str(error).strip().split("\n")[0]}
    return {"seconds": time.monotonic() - started}


if __name__ == "__main__":
    print(json.dumps(build() if sys.argv[1] == "build" else pin(int(sys.argv[2]))))
