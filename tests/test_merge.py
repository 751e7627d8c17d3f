"""`merge`: what is refused beforehand, and that nothing half is left."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from sft_exp import cli, difference, merge
from sft_exp.errors import ConfigError
from sft_exp.host import Host
from sft_exp.machine import Machine
from sft_exp.tokenizer import load_tokenizer
from test_model import build, tiny
from test_trained import made


def refusal(*argv: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        cli.start(["merge", *map(str, argv)])
    return str(refused.value)


def test_mistakes(here: Path) -> None:
    assert "--out" in refusal("x")
    assert "--max-difference=0.0 is not possible" in refusal("x", "--out", "y", "--max-difference", "0")
    assert "--max-difference=nan" in refusal("x", "--out", "y", "--max-difference", "nan")
    assert "nowhere is no run folder" in refusal("nowhere", "--out", "y")
    assert list(here.iterdir()) == []


def test_a_folder_that_holds_something(here: Path) -> None:
    out = here / "out"
    made(out)
    with pytest.raises(ConfigError, match="exists and is not empty: give a new folder"):
        merge.require_room(out, 1)
    (here / "file").touch()
    with pytest.raises(ConfigError, match="exists and is not empty"):
        merge.require_room(here / "file", 1)
    with pytest.raises(ConfigError, match="cannot be made"):
        merge.require_room(here / "file" / "out", 1)
    (here / "empty").mkdir()
    merge.require_room(here / "empty", 1)


def test_a_disk_without_room(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2**30))
    with pytest.raises(ConfigError, match=r"has 1\.0 GiB free and the model may need 2\.2 GiB"):
        merge.require_room(here / "a" / "b", 2 * 2**30)


def test_a_host_without_memory() -> None:
    host = Host(total=2**34, available=2**30)
    with pytest.raises(ConfigError, match=r"needs 4\.4 GiB of memory and 1\.0 GiB are available"):
        merge.require_memory(Machine(host=host), 2**30)


def test_logits_that_differ() -> None:
    """A constant in all logits of a place changes no probability; half of the rest is a difference of a half."""
    first = torch.tensor([[1.0, -1.0], [2.0, -2.0]])
    shifted = difference.compare([first], [first + torch.tensor([[5.0], [-3.0]])])
    assert (shifted.logits, shifted.same, shifted.places) == (0.0, 1.0, 2)
    half = difference.compare([first[:1], first[1:]], [first[:1] / 2, -first[1:]])
    assert half.logits == pytest.approx(((0.5 + 32) / 10) ** 0.5)  # (1/2)² twice, 4² twice, over 1² twice, 2² twice
    assert half.same == 0.5


def test_texts_hold_the_added_tokens() -> None:
    model = tiny(special_tokens=["<chunk>", "</chunk>"])
    texts = difference.texts(load_tokenizer(model), model.special_tokens)
    assert {2051, 2052} <= set(texts[-1].flatten().tolist())
    network = build(model)
    assert [each.shape for each in difference.logits(network, texts)] == [(each.shape[1], 2112) for each in texts]
