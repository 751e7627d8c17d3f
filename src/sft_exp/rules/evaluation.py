"""Rules about probes and scores."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

from sft_exp import task_metrics
from sft_exp.errors import ConfigError
from sft_exp.schema import Experiment, Loss


def problems(experiment: Experiment) -> Iterator[str]:
    """One sentence for each value that makes no sense, and for each own score that cannot be had."""
    settings = experiment.eval
    for key, least in (("count", 1), ("tokens", 1), ("batch", 1), ("every", 1), ("answers", 0)):
        value = getattr(settings, key)
        if value is not None and value < least:
            yield f"eval.{key}={value} must be at least {least}."
    if not settings.budget >= 0:
        yield f"eval.budget={settings.budget} must not be negative: give a share such as 0.05."
    for field in dataclasses.fields(settings.limits):
        value = getattr(settings.limits, field.name)
        if not value >= 0 or math.isinf(value):
            yield f"eval.limits.{field.name}={value} must not be negative."
    if settings.prompts is not None and not Path(settings.prompts).expanduser().is_file():
        yield f"eval.prompts={settings.prompts} is not there: give a text or jsonl file, or null."
    if not settings.probes:
        yield from _without_probes(experiment)
    for path in settings.metrics:
        try:
            task_metrics.load(path)
        except ConfigError as error:
            yield from error.problems
    yield from _on_purpose(experiment)


def _without_probes(experiment: Experiment) -> Iterator[str]:
    for key, remedy in (("metrics", "[]"), ("stop_degenerate", "false")):
        if value := getattr(experiment.eval, key):
            yield f"eval.{key}={value} needs answers and eval.probes is false: set it to true, or eval.{key}={remedy}."


def _on_purpose(experiment: Experiment) -> Iterator[str]:
    """What makes a run sick on purpose must at least have an effect."""
    if not experiment.dataset.train_end and experiment.dataset.loss is Loss.all:
        yield "dataset.train_end=false has no effect with dataset.loss=all: use dataset.loss=assistant."
