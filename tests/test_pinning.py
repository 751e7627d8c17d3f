"""Page-locked memory that is refused does not end a run."""

import types
from pathlib import Path
from typing import Any

import pytest
import torch

from sft_exp import pinning
from training import logged, train

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


@pytest.mark.slow
def test_a_real_run_whose_memory_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's own accelerator refuses every request of a real offloaded run, which trains and says why."""
    import deepspeed

    kind, before = type(deepspeed.get_accelerator()), dict(vars(deepspeed.get_accelerator()))
    asked: list[torch.Size] = []

    def refuse(self: Any, tensor: torch.Tensor, **_: bool) -> torch.Tensor:
        asked.append(tensor.shape)
        raise RuntimeError(REFUSED)

    monkeypatch.setattr(kind, "pin_memory", refuse)
    try:
        run = train(tmp_path, "zero=2_offload", "zero.pin_memory=true", "train.max_steps=2")
    finally:
        vars(deepspeed.get_accelerator()).clear()
        vars(deepspeed.get_accelerator()).update(before)
    assert asked
    assert len(logged(run)) == 2
    assert "invalid argument" in run.notice.read_text()
