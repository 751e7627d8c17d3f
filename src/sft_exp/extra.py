"""`train.extra`: the rest of TRL's SFTConfig, checked against the installed version without importing it."""

import ast
import functools
import json
from typing import Any

from sft_exp import installed
from sft_exp.explain import MOVED
from sft_exp.nearest import closest

SOURCES = ("transformers/training_args.py", "trl/trainer/base_config.py", "trl/trainer/sft_config.py")
"""Files of the dataclasses that SFTConfig is made of, the later ones over the earlier."""

OWNED = {
    "output_dir": "outputs",
    "run_name": "name",
    "per_device_train_batch_size": "train.micro_batch",
    "per_device_eval_batch_size": "train.micro_batch",
    "gradient_accumulation_steps": "train.global_batch",
    "learning_rate": "train.learning_rate",
    "lr_scheduler_type": "train.scheduler",
    "lr_scheduler_kwargs": "train.scheduler_args",
    "warmup_steps": "train.warmup",
    "num_train_epochs": "train.epochs",
    "max_steps": "train.max_steps",
    "optim": "train.optimizer",
    "weight_decay": "train.weight_decay",
    "max_grad_norm": "train.max_grad_norm",
    "bf16": "train.precision",
    "fp16": "train.precision",
    "gradient_checkpointing": "train.gradient_checkpointing",
    "activation_checkpointing": "train.gradient_checkpointing",
    "packing": "train.packing",
    "padding_free": "model.attention",
    "torch_compile": "train.compile",
    "seed": "train.seed",
    "data_seed": "train.seed",
    "logging_steps": "train.logging_steps",
    "logging_strategy": "train.logging_steps",
    "logging_first_step": "nothing: the first step is always logged",
    "logging_nan_inf_filter": "nothing: NaN is always shown",
    "eval_steps": "train.eval_steps",
    "eval_strategy": "train.eval_steps",
    "save_steps": "train.save_steps",
    "save_strategy": "train.save_steps",
    "save_total_limit": "train.save_total_limit",
    "load_best_model_at_end": "train.load_best",
    "metric_for_best_model": "train.load_best",
    "greater_is_better": "train.load_best",
    "use_cpu": "hw.device",
    "local_rank": "nothing: the launcher sets it",
    "ddp_backend": "hw.device",
    "deepspeed": "zero",
    "report_to": "tracking",
    "max_length": "dataset.max_length",
    "eos_token": "nothing: it follows from the chat template",
    "resume_from_checkpoint": "resume",
    "assistant_only_loss": "dataset.loss",
    "completion_only_loss": "dataset.loss",
    "chat_template_path": "model.chat_template",
    "trust_remote_code": "model.trust_remote_code",
    "model_init_kwargs": "model",
    "disable_tqdm": "nothing: progress is shown by the parent process",
    "hub_token": "the environment variable HF_TOKEN",
    "push_to_hub": "nothing: push the folder model/ after the run",
}
"""SFTConfig fields that follow from the configuration -> where they are set."""


@functools.cache
def fields() -> dict[str, ast.AnnAssign]:
    """SFTConfig's fields in the installed TRL and transformers."""
    found: dict[str, ast.AnnAssign] = {}
    for source in SOURCES:
        found |= installed.annotations(source, "SFTConfig", "_BaseConfig", "TrainingArguments")
    return found


def problems(extra: dict[str, Any]) -> list[str]:
    """One sentence for each key that is owned, renamed or unknown, and for each value of another type."""
    return [sentence for key, value in extra.items() if (sentence := _problem(key, value))]


def _problem(key: str, value: Any) -> str | None:
    if key in OWNED:
        return f"train.extra.{key} is set elsewhere here: {OWNED[key]}."
    if key in MOVED and key not in fields():
        return f"train.extra.{key} is no field of SFTConfig; here it is {MOVED[key]}."
    if key not in fields():
        hint = closest(key, fields()) or " Leave it out, or take a name from TRL's documentation."
        return f"train.extra.{key} is no field of the installed SFTConfig.{hint}"
    if wanted := installed.type_problem(fields()[key].annotation, value):
        return f"train.extra.{key}={json.dumps(value)} is not possible: it takes {wanted}."
    options = installed.choices(fields()[key])
    if options and isinstance(value, str) and value not in options:
        return f"train.extra.{key}={value} is not possible.{closest(value, options)} Choices: {', '.join(options)}."
    return None
