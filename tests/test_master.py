"""fp32 copies behind 16-bit weights: small updates are kept, saved and loaded, and seen by the model."""

import copy
from pathlib import Path

import pytest
import torch

from sft_exp.master import KEY, Masters
from training import go_on, logged, train


def model(dtype: torch.dtype) -> torch.nn.Linear:
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 8, bias=False)
    layer.weight.data = layer.weight.data.bfloat16().float()  # both begin alike
    return layer.to(dtype)


def step(layer: torch.nn.Linear, optimizer: torch.optim.Optimizer, seed: int) -> None:
    """One step on a gradient that both storage types hold exactly."""
    gradient = torch.randn(8, 8, generator=torch.Generator().manual_seed(seed)).bfloat16()
    layer.weight.grad = gradient.to(layer.weight.dtype)
    optimizer.step()
    optimizer.zero_grad()


def test_copies_take_the_steps_of_fp32_weights() -> None:
    exact, rounded, alone = model(torch.float32), model(torch.bfloat16), model(torch.bfloat16)
    begin = exact.weight.detach().clone()
    optimizers = [torch.optim.AdamW(layer.parameters(), lr=1e-5) for layer in (exact, rounded, alone)]
    masters = Masters(optimizers[1])
    for seed in range(20):
        for layer, optimizer in zip((exact, rounded, alone), optimizers, strict=True):
            step(layer, optimizer, seed)
    [(parameter, kept)] = masters.pairs
    assert parameter is rounded.weight
    assert torch.equal(kept, exact.weight)
    assert torch.equal(rounded.weight, exact.weight.bfloat16())
    moved = (exact.weight - begin).norm()
    assert (alone.weight.float() - exact.weight).norm() > 0.3 * moved  # what is lost without copies


def test_copies_are_saved_and_loaded() -> None:
    layer = model(torch.bfloat16)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-5)
    Masters(optimizer)
    for seed in range(3):
        step(layer, optimizer, seed)
    state = copy.deepcopy(optimizer.state_dict())
    assert state[KEY][0].dtype is torch.float32
    again = torch.nn.Linear(8, 8, bias=False).bfloat16()
    again.load_state_dict(layer.state_dict())
    second = torch.optim.AdamW(again.parameters(), lr=1e-5)
    copies = Masters(second)
    second.load_state_dict(state)
    for seed in range(3, 20):
        step(layer, optimizer, seed)
        step(again, second, seed)
    assert torch.equal(again.weight, layer.weight)
    assert torch.equal(copies.pairs[0][1], optimizer.param_groups[0]["params"][0])


def test_gradients_are_held_once() -> None:
    layer = model(torch.bfloat16)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-5)
    masters = Masters(optimizer)
    seen: list[bool] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(layer.weight.grad is None))
    step(layer, optimizer, 0)
    assert seen == [True]
    assert masters.pairs[0][1].grad is None


@pytest.mark.slow
def test_a_resumed_run_goes_on_exactly(tmp_path: Path) -> None:
    bf16 = ("model.dtype=bfloat16", "train.precision=bf16", "train.learning_rate=1e-4")
    whole = train(tmp_path / "whole", *bf16, "train.max_steps=4")
    saved = train(tmp_path / "part", *bf16, "train.max_steps=4", "train.save_steps=2")
    (saved.checkpoints / "checkpoint-4").rename(saved.path / "gone")
    kept = saved.metrics.read_text().splitlines()
    saved.metrics.write_text("\n".join(kept[:2]) + "\n")
    go_on(saved)
    assert logged(saved) == logged(whole)
