"""A user's DeepSpeed configuration against the run: what follows from the run may be repeated there, not changed.

Paths are dotted, such as `zero_optimization.stage`. `auto`, which other trainers fill in, means the run's own value.
"""

import json
from collections.abc import Iterator
from typing import Any

from sft_exp.request import flatten

AUTO = "auto"
NEVER = {
    "optimizer": "train.optimizer, train.learning_rate and train.weight_decay set the optimizer",
    "scheduler": "train.scheduler and train.warmup set the schedule",
    "zero_optimization.cpu_offload": "zero=2_offload offloads the optimizer",
    "zero_optimization.cpu_offload_param": "zero=3_offload offloads parameters",
    "zero_optimization.cpu_offload_use_pin_memory": "zero.pin_memory decides on page-locked memory",
    "torch_autocast": "train.precision sets the number format",
    "elasticity": "train.global_batch and hw.processes set the batch",
    "autotuning": "train.micro_batch sets the batch",
}
"""Blocks that the run never has -> what is used in their place."""
OWNED = {
    "train_batch_size": "train.global_batch",
    "train_micro_batch_size_per_gpu": "train.micro_batch",
    "gradient_accumulation_steps": "train.global_batch (micro batch x accumulation x ranks)",
    "gradient_clipping": "train.max_grad_norm",
    "bf16.enabled": "train.precision",
    "fp16.enabled": "train.precision",
    "fp16.auto_cast": "train.precision",
    "zero_optimization.stage": "zero",
    "zero_optimization.offload_optimizer.device": "zero (zero=2_offload)",
    "zero_optimization.offload_param.device": "zero (zero=3_offload)",
    "zero_optimization.offload_optimizer.pin_memory": "zero.pin_memory",
    "zero_optimization.offload_param.pin_memory": "zero.pin_memory",
    "zero_optimization.reduce_bucket_size": "zero.reduce_bucket_size",
    "zero_optimization.allgather_bucket_size": "zero.allgather_bucket_size",
    "zero_optimization.compute_grad_norm": "",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": "",
    "zero_optimization.gather_16bit_weights_on_model_save": "",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": "",
}
"""Values that follow from the run -> where they are set; empty where they are always the same."""


def problems(extra: dict[str, Any], made: dict[str, Any], global_batch: int) -> Iterator[str]:
    """One sentence for each value that would contradict the generated configuration `made`."""
    given = {path: value for path, value in flatten(extra).items() if not _says_nothing(value)}
    for block, instead in NEVER.items():
        if _value(extra, block) and any(path == block or path.startswith(f"{block}.") for path in given):
            yield f"DeepSpeed's {block} (zero.json, zero.extra) would contradict the run, where {instead}: remove it."
    run = expected(made, global_batch)
    for path, setter in OWNED.items():
        if path in given and path in run and given[path] != run[path]:
            theirs, ours = _text(given[path]), _text(run[path])
            has = (
                f"which has {ours}: change {setter}, or remove it" if setter else f"which always has {ours}: remove it"
            )
            yield f"DeepSpeed's {path}={theirs} (zero.json, zero.extra) would contradict the run, {has}."


def expected(made: dict[str, Any], global_batch: int) -> dict[str, Any]:
    """The run's value of each owned path that means anything at its stage."""
    values: dict[str, Any] = {
        "train_batch_size": global_batch,
        "fp16.auto_cast": False,
        "zero_optimization.compute_grad_norm": True,
    }
    values |= flatten(made)
    for part in ("optimizer", "param"):
        values.setdefault(f"zero_optimization.offload_{part}.device", "none")
    if made["zero_optimization"]["stage"] == 3:
        for path in OWNED:
            if path.endswith("weights_on_model_save"):
                values[path] = True
    return {path: values[path] for path in OWNED if path in values}


def settled(extra: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """What of `extra` is left to lay over `made`: without `auto` for what the run decides, and empty blocks."""
    return _settled(extra, made, "")


def _settled(extra: dict[str, Any], made: dict[str, Any], prefix: str) -> dict[str, Any]:
    left: dict[str, Any] = {}
    for key, value in extra.items():
        path, ours = f"{prefix}{key}", made.get(key)
        if path in OWNED or path in NEVER:  # repeats what the run has, or is refused
            continue
        if isinstance(value, dict):
            value = _settled(value, ours if isinstance(ours, dict) else {}, f"{path}.")
            if not value:
                continue
        elif value is None or (value == AUTO and ours is not None):
            continue
        left[key] = value
    return left


def _says_nothing(value: Any) -> bool:
    return value is None or value == AUTO or value == {}


def _value(extra: dict[str, Any], path: str) -> Any:
    node: Any = extra
    for part in path.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node if not isinstance(node, dict) else {"enabled": True, **node}["enabled"]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
