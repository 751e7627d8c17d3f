"""`zero.extra` and `zero.json`: keys and simple values held against DeepSpeed, which ignores a misspelt one."""

import ast
import functools
from collections.abc import Iterator
from typing import Any

from sft_exp import installed
from sft_exp.nearest import closest

TOP_LEVEL = (
    "activation_checkpointing", "aio", "autotuning", "bf16", "checkpoint", "comet", "comms_logger",
    "communication_data_type", "compile", "compression_training", "csv_monitor", "curriculum_learning",
    "data_efficiency", "data_types", "dataloader_drop_last", "datastates_ckpt", "disable_allgather",
    "disable_python_gc", "dump_state", "elasticity", "expert_parallel", "flops_profiler", "fp16",
    "gradient_accumulation_steps", "gradient_allreduce_op", "gradient_clipping", "gradient_predivide_factor",
    "hybrid_engine", "log_level", "managed_gradient_accumulation", "memory_breakdown", "optimizer", "pipeline",
    "prescale_gradients", "scheduler", "seq_parallel_communication_data_type", "steps_per_print", "tensor_parallel",
    "tensorboard", "timers", "torch_autocast", "train_batch_size", "train_micro_batch_size_per_gpu",
    "use_data_before_expert_parallelism", "wall_clock_breakdown", "wandb", "weight_quantization",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "zero_optimization",
)  # fmt: skip
"""Keys that DeepSpeed reads from its configuration; a test compares them with its source."""
BLOCKS = ("zero_optimization", "bf16", "fp16")
"""Keys of the generated configuration that hold mappings."""
SOURCE = "deepspeed/runtime/zero/config.py"


def problems(extra: dict[str, Any]) -> Iterator[str]:
    """One sentence for each key that DeepSpeed does not know and each value that it would not take."""
    for key, value in extra.items():
        if key not in TOP_LEVEL:
            yield f"zero.extra.{key} is no key of DeepSpeed's configuration.{_hint(key)}"
        elif key == "zero_optimization" and isinstance(value, dict):
            yield from _block(value)
        elif key in BLOCKS and not isinstance(value, dict) and value is not None and value != "auto":
            yield f"zero.extra.{key}={value} is no mapping: set keys below it, as in +zero.extra.{key}.KEY=VALUE."


def _hint(key: str) -> str:
    if key in keys():
        return f" Did you mean zero_optimization.{key}?"
    return closest(key, TOP_LEVEL) or " Its documentation lists them: www.deepspeed.ai/docs/config-json."


def _block(block: dict[str, Any]) -> Iterator[str]:
    known = keys()
    for key, value in block.items():
        name = f"zero.extra.zero_optimization.{key}"
        if known and key not in known:
            yield f"{name} is no key of DeepSpeed's zero_optimization.{closest(key, known)}"
        # transformers fills in some that are "auto".
        elif known and value not in ("auto", None) and (wanted := _wrong_type(known[key], value)):
            yield f"{name}={value} is not possible: it takes {wanted}."


def _wrong_type(field: ast.AnnAssign, value: Any) -> str | None:
    """What a key takes, if not this value; whole numbers are mostly written as 5e8, which JSON reads as a fraction."""
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    return installed.type_problem(field.annotation, whole)


@functools.cache
def keys() -> dict[str, ast.AnnAssign]:
    """Keys of `zero_optimization`, under their aliases too; empty where DeepSpeed is not installed."""
    fields = installed.annotations(SOURCE, "DeepSpeedZeroConfig")
    return fields | {alias: field for field in fields.values() for alias in _aliases(field)}


def _aliases(field: ast.AnnAssign) -> list[str]:
    calls = [node for node in ast.walk(field) if isinstance(node, ast.Call)]
    return [
        word.value.value
        for call in calls
        for word in call.keywords
        if word.arg == "alias" and isinstance(word.value, ast.Constant) and isinstance(word.value.value, str)
    ]
