"""Rules about the training loop."""

import math
from collections.abc import Iterator

from sft_exp import batch, extra, schedules
from sft_exp.resolve import can_have_masters
from sft_exp.schema import AdapterKind, Experiment

LARGEST_SEED = 2**32 - 1
"""What numpy takes."""


def problems(experiment: Experiment) -> Iterator[str]:
    """One sentence for each number that does not fit."""
    train, processes = experiment.train, experiment.hw.ranks
    if sentence := batch.problem(train.global_batch, train.micro_batch, processes):
        yield sentence
    for key, least in (("learning_rate", 0.0), ("epochs", 0.0)):
        if not getattr(train, key) > least:
            yield f"train.{key}={getattr(train, key)} must be more than {least:g}."
    for key in (
        "max_steps",
        "logging_steps",
        "eval_steps",
        "save_steps",
        "save_total_limit",
        "early_stopping",
        "sample_tokens",
    ):
        value = getattr(train, key)
        if value is not None and value < 1:
            yield f"train.{key}={value} must be at least 1."
    for key in ("warmup", "weight_decay", "max_grad_norm", "seed"):
        if not getattr(train, key) >= 0:
            yield f"train.{key}={getattr(train, key)} must not be negative."
    for key in ("learning_rate", "epochs", "warmup", "weight_decay", "max_grad_norm"):
        if math.isinf(getattr(train, key)):
            yield f"train.{key}={getattr(train, key)} must be finite."
    yield from schedules.problems(train.scheduler, train.scheduler_args)
    if sentence := schedules.optimizer_problem(train.optimizer):
        yield sentence
    if train.seed > LARGEST_SEED:
        yield f"train.seed={train.seed} is too large: use {LARGEST_SEED} or less."
    if experiment.dataset.streaming and train.max_steps is None:
        yield "dataset.streaming=true has no known number of rows: set train.max_steps."
    if experiment.dataset.streaming and train.packing:
        yield "train.packing=true needs rows that are stored: set dataset.streaming=false or train.packing=false."
    yield from _speed(experiment)
    yield from _evaluation(experiment)
    yield from extra.problems(train.extra)


def _speed(experiment: Experiment) -> Iterator[str]:
    train = experiment.train
    if train.master_weights and not can_have_masters(experiment, experiment.model.dtype):
        yield (
            "train.master_weights=true copies full bf16 weights without DeepSpeed, which has copies of its own: use it "
            "with adapter=full, zero=0 and model.dtype=bfloat16, or leave it null."
        )
    if train.compile and experiment.zero.stage == 3:
        yield (
            "train.compile=true cannot be had with zero=3, whose weights come and go: use zero=2 or "
            "train.compile=false."
        )
    if train.compile and experiment.adapter.kind is AdapterKind.qlora:
        yield "train.compile=true does not compile 4-bit layers: use adapter=lora or train.compile=false."


def _evaluation(experiment: Experiment) -> Iterator[str]:
    train = experiment.train
    wants = [name for name in ("early_stopping", "load_best") if getattr(train, name)]
    if experiment.dataset.eval_fraction == 0:
        for name in [*wants, *(["eval_steps"] if train.eval_steps else [])]:
            yield f"train.{name} needs evaluation rows and dataset.eval_fraction is 0: set it to a share such as 0.05."
    for name in wants:
        if train.eval_steps is None:
            yield f"train.{name} compares evaluations: set train.eval_steps."
    for name in ("eval_steps", "save_steps"):
        value = getattr(train, name)
        if value is not None and train.max_steps is not None and value > train.max_steps:
            yield (
                f"train.{name}={value} is never reached in train.max_steps={train.max_steps}: use {train.max_steps} "
                "or less, or null."
            )
    if wants and train.eval_steps and train.save_steps and train.save_steps % train.eval_steps:
        nearest = max(1, round(train.save_steps / train.eval_steps)) * train.eval_steps
        yield (
            f"train.save_steps={train.save_steps} is no multiple of train.eval_steps={train.eval_steps}, which "
            f"{wants[0]} needs: use {nearest}."
        )
