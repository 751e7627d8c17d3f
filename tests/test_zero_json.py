"""`zero.json`: a DeepSpeed configuration that a user already has."""

import json
from pathlib import Path
from typing import Any

import pytest

from composing import machine, resolved
from sft_exp import check, rundir, zero, zero_conflicts, zero_extra
from sft_exp.request import Request
from sft_exp.run import deepspeed

FOUR = machine("4090", 4)
RUN = ("model=tiny", "hw=4090x4", "zero=2", "tracking=none")
TEMPLATE: dict[str, Any] = {
    "fp16": {
        "enabled": "auto", "loss_scale": 0, "loss_scale_window": 500, "initial_scale_power": 16, "hysteresis": 2,
        "min_loss_scale": 1,
    },
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 2, "offload_optimizer": {"device": "none", "pin_memory": True}, "allgather_partitions": True,
        "allgather_bucket_size": 2e8, "overlap_comm": False, "reduce_scatter": True, "reduce_bucket_size": "auto",
        "contiguous_gradients": True, "sub_group_size": 1e9, "stage3_gather_16bit_weights_on_model_save": True,
    },
    "gradient_accumulation_steps": "auto", "gradient_clipping": 1.0, "steps_per_print": 2000,
    "train_batch_size": 16, "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": False,
}  # fmt: skip
"""What users of other trainers have: mostly `auto`, and large numbers as 2e8."""
CONTRADICTING: dict[str, Any] = {
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 3,
    "gradient_clipping": 0.5, "bf16": {"enabled": False}, "fp16": {"enabled": True, "auto_cast": True},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}, "scheduler": {"type": "WarmupLR"},
    "torch_autocast": {"enabled": True}, "elasticity": {"enabled": True}, "autotuning": {"enabled": True},
    "zero_optimization": {
        "stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "nvme"},
        "reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8, "cpu_offload": True,
    },
}  # fmt: skip


def problems(content: dict[str, Any], *typed: str) -> list[str]:
    Path("ds.json").write_text(json.dumps(content))
    experiment = resolved(*RUN, *typed, "zero.json=ds.json", on=FOUR)
    return [line for line in check.check(experiment, FOUR, plan=True).problems if "DeepSpeed compiles" not in line]


def test_the_usual_template_is_merged(here: Path) -> None:
    """Values of the run stay the run's, the rest is taken over, and nothing is left for another program to fill in."""
    assert problems(TEMPLATE) == []
    made = deepspeed(Request(experiment=resolved(*RUN, "zero.json=ds.json", on=FOUR)))
    plain = deepspeed(Request(experiment=resolved(*RUN, on=FOUR)))
    assert made is not None and plain is not None
    assert made["zero_optimization"] == plain["zero_optimization"] | {
        "allgather_partitions": True, "overlap_comm": False, "reduce_scatter": True, "sub_group_size": 1e9,
    }  # fmt: skip
    assert made["fp16"] == plain["fp16"] | {
        "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2, "min_loss_scale": 1,
    }  # fmt: skip
    assert made["steps_per_print"] == 2000
    assert {key: made[key] for key in plain if key.endswith(("_gpu", "_steps", "_clipping"))} == {
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
    }  # fmt: skip
    assert "auto" not in json.dumps(made)


def test_every_contradiction_is_named_at_once(here: Path) -> None:
    """One sentence each, with both values and what sets it here."""
    found = problems(CONTRADICTING)
    assert all(line.endswith("remove it.") and "\n" not in line for line in found)
    for words in (
        ("train_batch_size=64", "has 16", "train.global_batch"),
        ("train_micro_batch_size_per_gpu=8", "train.micro_batch"),
        ("gradient_accumulation_steps=3", "has 1"), ("gradient_clipping=0.5", "has 1.0", "train.max_grad_norm"),
        ("bf16.enabled=false", "has true", "train.precision"), ("fp16.enabled=true", "has false"),
        ("fp16.auto_cast=true",), ("optimizer", "train.optimizer"), ("scheduler", "train.scheduler"),
        ("torch_autocast", "train.precision"), ("elasticity",), ("autotuning",), ("stage=3", "has 2", "change zero"),
        ("offload_optimizer.device=cpu", "has none", "zero=2_offload"), ("offload_param.device=nvme", "zero=3_offload"),
        ("reduce_bucket_size=500000000.0", "zero.reduce_bucket_size"), ("allgather_bucket_size=500000000.0",),
        ("cpu_offload", "zero=2_offload"),
    ):  # fmt: skip
        assert sum(all(word in line for word in words) for line in found) >= 1, words
    assert len(found) == 18


@pytest.mark.parametrize("path", [*zero_conflicts.OWNED, *zero_conflicts.NEVER])
def test_every_owned_value_is_refused(here: Path, path: str) -> None:
    """Also if it is typed and not in a file."""
    *blocks, last = path.split(".")
    value: Any = {last: {"type": "x"} if path in zero_conflicts.NEVER else 987}
    for block in reversed(blocks):
        value = {block: value}
    made = zero.of(resolved("model=tiny", "hw=4090x4", "zero=3_offload", on=FOUR))
    assert made is not None
    made["zero_optimization"]["allgather_bucket_size"] = 1  # is there at stages 1 and 2
    [line] = zero_conflicts.problems(value, made, 16)
    assert path in line


def test_what_is_typed_wins_over_the_file(here: Path) -> None:
    Path("ds.json").write_text('{"steps_per_print": 5, "zero_optimization": {"round_robin_gradients": true}}')
    typed = ("zero.json=ds.json", "zero.extra={steps_per_print: 7}")
    extra = resolved(*RUN, *typed, on=FOUR).zero.extra
    assert extra == {"steps_per_print": 7, "zero_optimization": {"round_robin_gradients": True}}


def test_the_run_records_what_the_file_held(here: Path) -> None:
    """The file may change or vanish afterwards."""
    Path("ds.json").write_text('{"steps_per_print": 5}')
    experiment = resolved(*RUN, "zero.json=ds.json", on=FOUR)
    Path("ds.json").unlink()
    assert (experiment.zero.json, experiment.zero.extra) == (None, {"steps_per_print": 5})
    made = deepspeed(Request(experiment=experiment))
    assert made is not None and made["steps_per_print"] == 5
    assert rundir.run_name(experiment)


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "cannot be read (No such file"), ("{,}", "is not JSON"), ("[1]", "holds no mapping")],
)
def test_a_file_that_cannot_be_read(here: Path, text: str | None, words: str) -> None:
    if text is not None:
        Path("ds.json").write_text(text)
    experiment = resolved(*RUN, "zero.json=ds.json", on=FOUR)
    [line] = [line for line in check.check(experiment, FOUR, plan=True).problems if "zero.json" in line]
    assert f"zero.json=ds.json {words}" in line


def test_stage_0_has_no_use_for_a_file(here: Path) -> None:
    assert any("zero=0 runs without DeepSpeed" in line for line in problems({"steps_per_print": 5}, "zero=0"))


def test_misspelt_keys_of_a_file_are_refused(here: Path) -> None:
    [line] = problems({"zero_optimization": {"round_robin_gradient": True}})
    assert "Did you mean round_robin_gradients?" in line
    assert list(zero_extra.problems({"bf16": True})) == [
        "zero.extra.bf16=True is no mapping: set keys below it, as in +zero.extra.bf16.KEY=VALUE."
    ]
    assert list(zero_extra.problems({"zero_optimization": {"sub_group_size": 1.5}})) == [
        "zero.extra.zero_optimization.sub_group_size=1.5 is not possible: it takes a whole number."
    ]
