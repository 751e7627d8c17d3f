"""The DeepSpeed configuration of every stage.

Renew the golden files after an intended change: UPDATE_GOLDEN=1 pytest tests/test_zero.py
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from composing import Compose, options
from sft_exp import zero, zero_conflicts, zero_file
from sft_exp.request import flatten
from sft_exp.schema import Precision, Zero

GOLDEN = Path(__file__).parent / "deepspeed"
TUNING = {
    "fp16.initial_scale_power", "fp16.loss_scale_window", "steps_per_print", "wall_clock_breakdown",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "zero_optimization.overlap_comm",
    "zero_optimization.contiguous_gradients", "zero_optimization.stage3_prefetch_bucket_size",
}  # fmt: skip
"""Keys of ours that change speed and nothing else that the run has set."""


def config(settings: Zero, precision: Precision = Precision.bf16) -> dict[str, Any]:
    made = zero.config(settings, precision=precision, micro=2, accumulation=4, clip=1.0)
    assert made is not None
    return made


@pytest.mark.parametrize("option", [option for option in options("zero") if option != "0"])
def test_golden(compose: Compose, option: str) -> None:
    made = config(compose(f"zero={option}").experiment.zero)
    file = GOLDEN / f"{option}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    assert made == json.loads(file.read_text(encoding="utf-8"))


def test_stage_0_does_without() -> None:
    assert zero.config(Zero(), precision=Precision.bf16, micro=1, accumulation=1, clip=1.0) is None


@pytest.mark.parametrize("precision", list(Precision))
def test_precision(precision: Precision) -> None:
    made = config(Zero(stage=2), precision)
    assert made["bf16"]["enabled"] is (precision is Precision.bf16)
    assert made["fp16"]["enabled"] is (precision is Precision.fp16)


def test_numbers_of_the_run() -> None:
    made = zero.config(Zero(stage=1), precision=Precision.fp16, micro=3, accumulation=5, clip=0.5)
    assert made is not None
    assert made["train_micro_batch_size_per_gpu"] == 3
    assert made["gradient_accumulation_steps"] == 5
    assert made["gradient_clipping"] == 0.5


@pytest.mark.parametrize(
    ("field", "value", "stage", "path"),
    [
        ("pin_memory", True, 2, ("offload_optimizer", "pin_memory")),
        ("reduce_bucket_size", 1000, 2, ("reduce_bucket_size",)),
        ("allgather_bucket_size", 1000, 2, ("allgather_bucket_size",)),
    ],
)
def test_fields(field: str, value: Any, stage: int, path: tuple[str, ...]) -> None:
    found = config(Zero(stage=stage, offload_optimizer=True, **{field: value}))["zero_optimization"]
    for key in path:
        found = found[key]
    assert found == value


def test_offload() -> None:
    both = config(Zero(stage=3, offload_optimizer=True, offload_param=True, pin_memory=True))["zero_optimization"]
    assert both["offload_optimizer"] == both["offload_param"] == {"device": "cpu", "pin_memory": True}
    assert not {"offload_optimizer", "offload_param"} & config(Zero(stage=3))["zero_optimization"].keys()


def test_saved_weights_are_whole_at_stage_3() -> None:
    assert config(Zero(stage=3))["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is True


def test_extra_is_merged_block_by_block() -> None:
    settings = Zero(
        stage=2, extra={"zero_optimization": {"overlap_comm": False}, "steps_per_print": 5, "new": {"a": 1}}
    )
    made, plain = config(settings), config(Zero(stage=2))
    assert made["zero_optimization"] == {**plain["zero_optimization"], "overlap_comm": False}
    assert (made["steps_per_print"], made["new"]) == (5, {"a": 1})
    assert settings.extra["zero_optimization"] == {"overlap_comm": False}


def test_merge_leaves_its_arguments_alone() -> None:
    base: dict[str, Any] = {"a": {"b": 1}, "c": 2}
    extra: dict[str, Any] = {"a": {"d": 3}, "c": {"e": 4}}
    assert zero_file.merge(base, extra) == {"a": {"b": 1, "d": 3}, "c": {"e": 4}}
    assert (base, extra) == ({"a": {"b": 1}, "c": 2}, {"a": {"d": 3}, "c": {"e": 4}})


@pytest.mark.parametrize("option", [option for option in options("zero") if option != "0"])
def test_everything_that_follows_from_the_run_is_owned(compose: Compose, option: str) -> None:
    """A key of ours that a user could overwrite is one of those that only tune."""
    made = flatten(config(compose(f"zero={option}").experiment.zero))
    assert made.keys() <= TUNING | zero_conflicts.OWNED.keys()
