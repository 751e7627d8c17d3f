"""Saved weights are opened again and counted."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sft_exp import saved
from sft_exp.errors import RunFailed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards of 6 and 4 values."""
    save_file({"a": torch.zeros(2, 3)}, tmp_path / "model-1.safetensors", {"format": "pt"})
    save_file({"b": torch.zeros(4, dtype=torch.bfloat16)}, tmp_path / "model-2.safetensors")
    return tmp_path


def test_whole(folder: Path) -> None:
    assert [saved.values(file) for file in sorted(folder.iterdir())] == [6, 4]
    saved.require_whole(folder, 10)


def test_too_few(folder: Path) -> None:
    """As ZeRO-3 leaves them without a gather: tensors without values."""
    save_file({"b": torch.zeros(0)}, folder / "model-2.safetensors")
    with pytest.raises(RunFailed, match="holds 6 of 10 trained values"):
        saved.require_whole(folder, 10)


def test_none(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="holds no weights"):
        saved.require_whole(tmp_path, 1)


def test_cut_off(folder: Path) -> None:
    """As a full disk leaves it."""
    file = folder / "model-1.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    with pytest.raises(RunFailed, match=f"ends after {len(whole) - 5} of {len(whole)} bytes"):
        saved.require_whole(folder, 10)
