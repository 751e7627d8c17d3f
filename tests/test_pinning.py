"""Page-locked memory that is refused does not end a run."""

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import sft_exp
from sft_exp import pinning

SOURCE = Path(sft_exp.__file__).resolve().parents[1]

REFUSED = "CUDA error: invalid argument\nCUDA kernel errors might be reported later"


def guarded(pin: Any) -> tuple[Any, list[str]]:
    accelerator, heard = types.SimpleNamespace(pin_memory=pin), list[str]()
    pinning.guard(accelerator, heard.append)
    return accelerator, heard


def test_what_works_is_left_alone() -> None:
    accelerator, heard = guarded(lambda tensor: tensor + 1)
    assert accelerator.pin_memory(torch.zeros(2)).tolist() == [1, 1]
    assert heard == []


def test_a_refusal_is_told_once() -> None:
    def refuse(tensor: torch.Tensor, **_: bool) -> torch.Tensor:
        raise RuntimeError(REFUSED)

    accelerator, heard = guarded(refuse)
    tensor = torch.zeros(2, 3)
    assert accelerator.pin_memory(tensor) is tensor
    assert accelerator.pin_memory(tensor, make_copy=False) is tensor
    assert accelerator.pin_memory(tensor, make_copy=False, match_shape=False).shape == (6,)
    [line] = heard
    assert "(CUDA error: invalid argument)" in line
    assert "zero.pin_memory=false" in line


def test_a_tensor_on_another_device_stays_there() -> None:
    """torch itself refuses to page-lock one."""
    there = torch.zeros(2, device="meta")
    with pytest.raises((RuntimeError, NotImplementedError)):
        there.pin_memory()
    accelerator, heard = guarded(torch.Tensor.pin_memory)
    assert accelerator.pin_memory(there) is there
    assert heard == []


FAULT = """
import os
if "RANK" in os.environ:
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
    def refuse(self, tensor, *_, **__):
        raise RuntimeError("CUDA error: invalid argument")
    CPU_Accelerator.pin_memory = refuse
"""


@pytest.mark.slow
def test_a_real_run_whose_memory_cannot_be_locked(here: Path) -> None:
    """DeepSpeed's own accelerator refuses every request of an offloaded run, which trains and says why."""
    (here / "sitecustomize.py").write_text(FAULT)
    typed = ("model=tiny", "hw=cpu", "zero=2_offload", "zero.pin_memory=true", "tracking=none", "train.max_steps=2")
    done = subprocess.run(
        [sys.executable, "-m", "sft_exp", *typed], cwd=here, capture_output=True, text=True, timeout=500, check=False,
        env={**os.environ, "PYTHONPATH": f"{here}:{SOURCE}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("page-locked memory was refused (CUDA error: invalid argument)") == 1
    assert "step     2/2" in done.stdout
