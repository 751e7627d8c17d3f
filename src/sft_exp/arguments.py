"""TRL's SFTConfig for a resolved experiment. It must exist before the model, which ZeRO-3 splits while it is built."""

from typing import Any

from trl import SFTConfig

from sft_exp import hw
from sft_exp.request import Request
from sft_exp.run import batch, deepspeed
from sft_exp.rundir import RunDir
from sft_exp.schema import Device, Precision


def arguments(request: Request, run: RunDir, *, evaluates: bool) -> SFTConfig:
    """Every argument that differs from TRL's default, each from one place of the configuration."""
    experiment, train, cut = request.experiment, request.experiment.train, batch(request)
    flat = experiment.model.attention in hw.FLAT
    save_steps = train.save_steps or (train.eval_steps if train.load_best else None)
    values: dict[str, Any] = {
        "output_dir": str(run.checkpoints),
        "run_name": run.name,
        "per_device_train_batch_size": cut.micro,
        "per_device_eval_batch_size": cut.micro,
        "gradient_accumulation_steps": cut.accumulation,
        "learning_rate": train.learning_rate,
        "lr_scheduler_type": train.scheduler,
        "lr_scheduler_kwargs": train.scheduler_args,
        "warmup_steps": train.warmup,
        "num_train_epochs": train.epochs,
        "max_steps": train.max_steps or -1,
        "optim": train.optimizer,
        "weight_decay": train.weight_decay,
        "max_grad_norm": train.max_grad_norm,
        "bf16": train.precision is Precision.bf16,
        "fp16": train.precision is Precision.fp16,
        "activation_checkpointing": train.gradient_checkpointing,
        # TRL's own default is on, under the old name, which wins where the new one is not given.
        "gradient_checkpointing": None,
        "packing": train.packing,
        # TRL packs into `max_length`; else the rows have been cut already, and it wants to hear that nothing cuts them.
        "max_length": experiment.dataset.max_length if train.packing or not flat else None,
        "padding_free": flat,
        "train_sampling_strategy": "random" if experiment.dataset.shuffle else "sequential",
        "seed": train.seed,
        "data_seed": train.seed,
        "logging_strategy": "steps",
        "logging_steps": train.logging_steps,
        "logging_first_step": True,
        # The default replaces NaN by an average, which keeps the curve pretty and the weights broken.
        "logging_nan_inf_filter": False,
        "eval_strategy": "steps" if evaluates and train.eval_steps else "no",
        "eval_steps": train.eval_steps,
        "save_strategy": "steps" if save_steps else "no",
        "save_steps": save_steps or 500,
        "save_total_limit": train.save_total_limit,
        "load_best_model_at_end": train.load_best,
        "metric_for_best_model": "eval_loss" if evaluates else None,
        "greater_is_better": False if evaluates else None,
        "use_cpu": experiment.hw.device is Device.cpu,
        "ddp_backend": "gloo" if experiment.hw.device is Device.cpu else None,
        # Every parameter of a decoder is used; looking for unused ones walks the graph once more in each step.
        "ddp_find_unused_parameters": False,
        "deepspeed": deepspeed(request),
        "report_to": "none",
        "disable_tqdm": True,
    }
    return SFTConfig(**{**values, **train.extra})
