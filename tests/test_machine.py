"""What is read from the machine, and that torch stays out of it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from composing import machine
from sft_exp.machine import Machine, host_memory_gib, look, torch_build


def fake_torch(folder: Path, cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch whose import fails and whose version file says what is given."""
    package = folder / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('imported')\n")
    (package / "version.py").write_text(
        f"from typing import Optional\n__version__ = '2.99'\ncuda: {cuda}\nhip = None\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name == "torch" or name.startswith("torch.")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    ("line", "cuda"),
    [("Optional[str] = '13.0'", 13.0), ("Optional[str] = '12.6.3'", 12.6), ("Optional[str] = None", None)],
)
def test_torch_build_reads_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, cuda: float | None
) -> None:
    fake_torch(tmp_path, line, monkeypatch)
    assert torch_build()[1] == cuda
    assert "torch" not in sys.modules


def test_torch_build_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert torch_build() == (None, None)


def test_look_is_light() -> None:
    """The real machine, in a fresh process."""
    code = "import sys; from sft_exp.machine import look; print(look().cores > 0, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_look() -> None:
    found = look()
    assert found.torch is not None
    assert [card.index for card in found.cards] == list(range(len(found.cards)))
    assert all(card.capability > 2 and card.memory_gib > 1 for card in found.cards)


@pytest.mark.parametrize(
    ("visible", "indices"),
    [(None, [0, 1, 2, 3]), ("2", [2]), ("3,0", [3, 0]), ("", []), ("7", []), ("GPU-1, 3", [1, 3]), (" 1 , 2 ", [1, 2])],
)
def test_usable(monkeypatch: pytest.MonkeyPatch, visible: str | None, indices: list[int]) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [card.index for card in machine("4090", 4).usable()] == indices


def test_no_card_is_usable_without_cuda() -> None:
    assert machine("4090", 4, torch_cuda=None).usable() == []
    assert Machine().usable() == []


def test_host_memory() -> None:
    """In GiB, and not more than the kernel counts, whatever a container allows."""
    total = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    have = host_memory_gib()
    assert have is not None
    assert 0.1 < have <= total * 1.01
    assert look().memory_gib == have
