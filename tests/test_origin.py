"""Where values come from."""

import sys
from pathlib import Path
from typing import Any

import pytest

from composing import NO_CARDS, Compose, machine
from sft_exp import cli, origin
from sft_exp.machine import Machine
from sft_exp.request import Request
from sft_exp.resolve import resolve


def sources(request: Request, on: Machine = NO_CARDS) -> dict[str, tuple[Any, str]]:
    return {key: (value, source) for key, value, source in origin.changed(request, resolve(request.experiment, on))}


def test_each_kind_of_source(compose: Compose) -> None:
    found = sources(
        compose("experiment=r1_full_4090x4", "hw=4090x4", "train.seed=7", "train.extra={adam_beta1: 0.8}"),
        machine("4090", 4),
    )
    assert found["train.seed"] == (7, "command line")
    assert found["train.extra.adam_beta1"] == (0.8, "command line")
    assert found["train.learning_rate"] == (1e-5, "experiment=r1_full_4090x4")
    assert found["zero.stage"] == (2, "zero=2")
    assert found["hw.processes"] == (4, "hw=4090x4")
    assert found["hw.capability"] == (8.9, "hw=4090x1")  # where it is written
    assert found["model.shape.hidden_size"] == (1536, "model=r1-qwen1.5b")
    assert found["hw.threads"] == (8, "decided for this machine and run")
    assert found["model.dtype"][1] == "decided for this machine and run"


def test_only_what_differs_from_the_schema(compose: Compose) -> None:
    found = sources(compose("model=tiny", "train.seed=42"))
    assert "train.seed" not in found
    assert "adapter.kind" not in found
    groups = ("model", "dataset", "hw", "train", "tracking", "eval", "outputs")
    assert list(found) == sorted(found, key=lambda key: groups.index(key.partition(".")[0]))


def test_a_sweep_and_a_file_of_the_user(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    for group, text in (
        ("experiment", "# @package _global_\ntrain:\n  seed: 5\n  weight_decay: 0.1\n"),
        ("sweep", "# @package _global_\ntrain:\n  weight_decay: 0.2\nhydra:\n  mode: MULTIRUN\n"),
    ):
        (folder / group).mkdir(parents=True)
        (folder / group / "ours.yaml").write_text(text)
    argv = ["model=tiny", "experiment=ours", "sweep=ours", "train.max_steps=1,2", f"--config-dir={folder}"]
    monkeypatch.setattr(sys, "argv", ["sft_exp", *argv])
    requests, _ = cli.compose(argv)
    found = sources(requests[1])
    assert found["train.max_steps"] == (2, "command line")
    assert found["train.seed"] == (5, "experiment=ours")
    assert found["train.weight_decay"] == (0.2, "sweep=ours")
