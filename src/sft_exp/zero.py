"""The DeepSpeed configuration of a ZeRO stage: one source, a pure function, printed by `plan`."""

import dataclasses
from typing import Any

from sft_exp import zero_conflicts
from sft_exp.schema import Experiment, Precision, Zero
from sft_exp.zero_file import merge


def of(experiment: Experiment) -> dict[str, Any] | None:
    """The configuration of a resolved experiment."""
    train, micro = experiment.train, experiment.train.micro_batch or 1
    return config(
        experiment.zero, precision=train.precision, micro=micro, clip=train.max_grad_norm,
        accumulation=train.global_batch // (micro * experiment.hw.ranks),
    )  # fmt: skip


def config(zero: Zero, *, precision: Precision, micro: int, accumulation: int, clip: float) -> dict[str, Any] | None:
    """DeepSpeed's JSON, or None at stage 0, which does without DeepSpeed.

    There is no `optimizer` and no `scheduler` block: the trainer's own are used, so that a schedule means the same
    at each stage and nothing has to be compiled with nvcc. `gradient_clipping` is always given, since DeepSpeed has a
    default of its own, which nobody holds against the trainer's.
    """
    if zero.stage == 0:
        return None
    shared: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": clip,
        "bf16": {"enabled": precision is Precision.bf16},
        # A scale that starts at 2^16 and doubles after 1,000 good steps, as torch's own scaler begins.
        "fp16": {"enabled": precision is Precision.fp16, "initial_scale_power": 16, "loss_scale_window": 1000},
        "zero_optimization": _stage(zero),
        # Client optimizers with offload need DeepSpeed's permission; the trainer then takes its CPU Adam.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        # Its own per-step report repeats what is logged already.
        "steps_per_print": 10**9,
        "wall_clock_breakdown": False,
    }
    return merge(shared, zero_conflicts.settled(zero.extra, shared))


def _stage(zero: Zero) -> dict[str, Any]:
    block: dict[str, Any] = {
        "stage": zero.stage,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": zero.reduce_bucket_size,
    }
    if zero.stage < 3:
        block["allgather_bucket_size"] = zero.allgather_bucket_size
    else:
        # Without the gather the saved folder has no weights that from_pretrained could read.
        block["stage3_gather_16bit_weights_on_model_save"] = True
        block["stage3_prefetch_bucket_size"] = zero.allgather_bucket_size // 4
    # Pinning is off unless asked for: it fails on some drivers ("invalid argument") and cannot be swapped.
    if zero.offload_optimizer:
        block["offload_optimizer"] = {"device": "cpu", "pin_memory": zero.pin_memory}
    if zero.offload_param:
        block["offload_param"] = {"device": "cpu", "pin_memory": zero.pin_memory}
    return block


def conflicts(experiment: Experiment) -> list[str]:
    """One sentence for each value of `zero.extra` that would contradict the run."""
    plain = dataclasses.replace(experiment, zero=dataclasses.replace(experiment.zero, extra={}))
    made = of(plain)
    return (
        []
        if made is None
        else list(zero_conflicts.problems(experiment.zero.extra, made, experiment.train.global_batch))
    )
