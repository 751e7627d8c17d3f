"""The memory plan against measured peaks, and what must hold for any run."""

import itertools
import statistics
from pathlib import Path

import pytest

from composing import assembled, machine, resolved
from memory_points import Point, points
from sft_exp import memory, memory_activations
from sft_exp.memory import ERROR, MemoryPlan, Verdict
from sft_exp.memory_facts import facts
from sft_exp.schema import Experiment

POINTS = points()
OURS = [point for point in POINTS if not point.source.startswith("Qwen")]
BOUNDS = {"Qwen README, lora": 0.18, "Qwen README, qlora": 0.30}
"""Published numbers of other programs, which differ in more than memory."""


def run(*overrides: str, ranks: int = 4) -> Experiment:
    return assembled("model=r1-qwen1.5b", "hw=4090x4", *overrides, on=machine("4090", ranks))


def planned(*overrides: str) -> MemoryPlan:
    made = memory.plan(run("train.micro_batch=1", *overrides))
    assert made is not None
    return made


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point.source}: {point.name}")
def test_a_measured_peak(here: Path, point: Point) -> None:
    assert abs(point.error) <= BOUNDS.get(point.source, ERROR), f"{point.planned_gib:.2f} of {point.measured_gib:.2f}"


def test_half_of_the_points_are_nearer_than_two_percent(here: Path) -> None:
    assert len(OURS) >= 32
    assert statistics.median(abs(point.error) for point in OURS) < 0.02
    lora = [abs(point.error) for point in POINTS if point.source == "Qwen README, lora"]
    assert statistics.median(lora) < 0.05


SETTINGS = list(
    itertools.product(
        ("adapter=full", "adapter=lora", "adapter=qlora"),
        ("zero=0", "zero=1", "zero=2", "zero=3", "zero=2_offload", "zero=3_offload"),
        ("train.gradient_checkpointing=false", "train.gradient_checkpointing=true"),
    )
)


@pytest.mark.parametrize("words", SETTINGS, ids=" ".join)
def test_more_needs_more(here: Path, words: tuple[str, ...]) -> None:
    """A larger batch, longer rows, eager attention and a larger model never need less, gradients accumulated or not."""
    words = (*words, "train.global_batch=64")
    base = planned(*words).allocated_gib
    for more in (
        "train.micro_batch=4", "dataset.max_length=4096", "model.attention=eager", "model=qwen7b",
        "zero.reduce_bucket_size=500000000",
    ):  # fmt: skip
        assert planned(*words, more).allocated_gib >= base, more


@pytest.mark.parametrize("words", SETTINGS, ids=" ".join)
def test_less_needs_less(here: Path, words: tuple[str, ...]) -> None:
    base = planned(*words, "train.micro_batch=4", "train.optimizer=adamw_torch").allocated_gib
    for less in ("train.gradient_checkpointing=true", "train.optimizer=adamw_torch_fused", "train.optimizer=sgd"):
        assert planned(*words, "train.micro_batch=4", "train.optimizer=adamw_torch", less).allocated_gib <= base, less


@pytest.mark.parametrize("adapter", ["full", "lora"])
@pytest.mark.parametrize("model", ["qwen1.5b", "r1-qwen7b"])
def test_sharding_more_does_not_need_more(here: Path, model: str, adapter: str) -> None:
    """From stage to stage over four cards, by the components that are sharded; the buffers of the stages differ."""
    sharded = ("weights", "adapter", "master copies", "optimizer")
    sizes = []
    for stage in ("1", "2", "3", "3_offload"):
        made = planned(f"model={model}", f"adapter={adapter}", f"zero={stage}", "train.micro_batch=8")
        sizes.append(sum(made.parts.get(name, 0) for name in sharded))
    assert sizes == sorted(sizes, reverse=True)
    if adapter == "full":
        assert planned(f"model={model}", "zero=1").allocated_gib < planned(f"model={model}", "zero=0").allocated_gib


def test_an_adapter_needs_less(here: Path) -> None:
    full, lora, qlora = (planned(f"adapter={name}", "zero=0") for name in ("full", "lora", "qlora"))
    assert full.allocated_gib > lora.allocated_gib > qlora.allocated_gib
    assert lora.parts["adapter"] == 4 * 18_464_768


def test_components_by_hand(here: Path) -> None:
    """1.78 billion parameters under ZeRO-2 on four cards: 2P, 4P/4, 8P/4, and 8P/4 inside the step."""
    made, total = planned("zero=2", "train.gradient_checkpointing=true", "train.optimizer=adamw_torch"), 1_777_088_000
    assert made.moment == "the optimizer step"
    assert [made.parts[name] for name in ("weights", "master copies", "optimizer")] == [2 * total, total, 2 * total]
    assert made.parts["optimizer step"] == 2 * total


def test_gradients_stay_in_the_step_of_stage_two_by_hand(here: Path) -> None:
    """One card: 24 bytes per parameter with square roots, 2 + 4 + 8 + 2 and 6 for flattening if the update is fused."""
    total, workspace = 1_777_088_000, memory.WORKSPACE_GIB * memory.GIB
    words = ("model=r1-qwen1.5b", "hw=h200", "zero=2", "train.gradient_checkpointing=true", "train.micro_batch=1")
    for optimizer, size in (("adamw_torch", 24), ("adamw_torch_fused", 22)):
        made = memory.plan(assembled(*words, f"train.optimizer={optimizer}", on=machine("h200")))
        assert made is not None
        assert made.moment == "the optimizer step"
        assert sum(made.parts.values()) == size * total + workspace


def test_norms_of_offloaded_gradients_are_fp64_by_hand(here: Path) -> None:
    """An embedding larger than the bucket: itself, the buffer for its way, 8 bytes for its norm, and two buckets."""
    words = ("model=qwen1.5b", "hw=h200", "zero=2_offload", "train.gradient_checkpointing=true", "train.micro_batch=1")
    made = memory.plan(assembled(*words, on=machine("h200")))
    assert made is not None
    assert made.moment == "the largest gradient, to the host"
    assert made.parts["gradient buckets"] == (2 + 2 + 8) * 151_936 * 1536 + 2 * 2 * 200_000_000


def test_offload_moves_state_to_the_host(here: Path) -> None:
    card, host = planned("zero=2"), planned("zero=2_offload")
    assert "master copies" not in host.parts
    assert "optimizer" not in host.parts
    assert host.host_gib - card.host_gib > 8
    assert "offloaded state, pageable" in host.host
    assert "offloaded state, pinned" in planned("zero=2_offload", "zero.pin_memory=true").host


def test_the_loss_is_never_built_whole_but_with_label_smoothing(here: Path) -> None:
    """Tile 4096 x 32768 in bf16; 12 bytes per token and word otherwise."""
    plain = facts(run("train.micro_batch=8", "adapter=lora"))
    smooth = facts(run("train.micro_batch=8", "adapter=lora", "train.extra={label_smoothing_factor: 0.1}"))
    assert plain and smooth
    hidden = 8 * 1024 * 1536
    assert memory_activations.loss_backward(plain) == 4096 * 32768 * 2 + hidden * (2 + 4 + 2)
    assert memory_activations.loss_backward(smooth) == 12 * 8 * 1024 * 151_936


@pytest.mark.parametrize(
    ("overrides", "verdict"),
    [
        ("experiment=r1_lora_4090x4", Verdict.fits),
        ("experiment=r1_full_4090x4", Verdict.fits),
        ("experiment=r1_full_4090x4 zero=3", Verdict.fits),
        ("model=r1-qwen7b adapter=full hw=4090x1", Verdict.too_large),
        ("model=qwen7b adapter=full hw=4090x1 zero=3 train.gradient_checkpointing=true", Verdict.too_large),
        ("model=qwen7b adapter=lora hw=4090x1 hw.memory_gib=null", Verdict.unknown),
    ],
)
def test_known_recipes(here: Path, overrides: str, verdict: Verdict) -> None:
    made = memory.plan(resolved(*overrides.split(), on=machine("4090", 4)))
    assert made is not None
    assert made.verdict is verdict


def test_not_planned(here: Path) -> None:
    assert memory.plan(resolved("model=qwen0.5b", "hw=cpu")) is None
    assert memory.plan(run("model.shape.hidden_size=null")) is None
