"""The DeepSpeed configuration of a ZeRO stage: one source, a pure function, printed by `plan`."""

from typing import Any

from sft_exp.schema import Precision, Zero

OWNED = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "bf16",
    "fp16",
    "optimizer",
    "scheduler",
)
"""Top-level keys that follow from the run; a user's `zero.extra` may not set them."""
OWNED_ZERO = ("stage", "offload_optimizer", "offload_param", "stage3_gather_16bit_weights_on_model_save")
"""Keys of `zero_optimization` that follow from the other fields of the group."""


def config(zero: Zero, *, precision: Precision, micro: int, accumulation: int, clip: float) -> dict[str, Any] | None:
    """DeepSpeed's JSON, or None at stage 0, which does without DeepSpeed.

    There is no `optimizer` and no `scheduler` block: the trainer's own are used, so that a schedule means the same
    at each stage and nothing has to be compiled with nvcc. `gradient_clipping` is always given, since without the key
    DeepSpeed does not clip whatever the trainer was told.
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
    return merge(shared, zero.extra)


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


def merge(base: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """`base` with `extra` laid over it, block by block."""
    merged = dict(base)
    for key, value in extra.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def conflicts(zero: Zero) -> list[str]:
    """One sentence for each key of `zero.extra` that would contradict the run."""
    block = zero.extra.get("zero_optimization", {})
    owned = [key for key in OWNED if key in zero.extra]
    owned += [f"zero_optimization.{key}" for key in OWNED_ZERO if isinstance(block, dict) and key in block]
    return [f"zero.extra.{key} would contradict the run, which sets it itself: remove it." for key in owned]
