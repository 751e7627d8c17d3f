"""Rules about sweeps and searches."""

import importlib.util
from collections.abc import Iterator
from typing import Any

from sft_exp.errors import ConfigError
from sft_exp.schema import Experiment, Pruner, Sampler, Sweep

RANGE = {"low", "high", "log", "step"}


def refuse(settings: Sweep, *, by_launcher: bool = False) -> None:
    """Raise everything that is wrong with how jobs are run, here or by one of Hydra's launchers."""
    problems = list(of_sweep(settings))
    if by_launcher and settings.per_device != 1:
        problems.append(
            f"sweep.per_device={settings.per_device} shares the cards of this machine, and hydra/launcher asks a "
            "scheduler for each job's own: remove one of the two."
        )
    if problems:
        raise ConfigError(*problems)


def of_sweep(settings: Sweep) -> Iterator[str]:
    """One sentence for each value that cannot work in any sweep."""
    if settings.per_device < 1:
        yield f"sweep.per_device={settings.per_device} must be at least 1."
    if len(settings.objective) != len(settings.direction) or not settings.objective:
        yield (
            f"sweep.objective has {len(settings.objective)} metrics and sweep.direction {len(settings.direction)} "
            "values: give one direction, minimize or maximize, for each metric."
        )


def of_job(experiment: Experiment) -> Iterator[str]:
    """One sentence for each reason why an experiment cannot be a job."""
    if experiment.hw.machines > 1:
        yield f"hw.machines={experiment.hw.machines}: a job of a sweep runs on one machine; start such runs one by one."


def of_search(experiment: Experiment) -> Iterator[str]:
    """One sentence for each reason why a search cannot start."""
    settings = experiment.sweep
    yield from of_sweep(settings)
    if importlib.util.find_spec("optuna") is None:
        yield f"sweep.sampler={_name(settings.sampler)} needs the package optuna: pip install 'sft_exp[search]'."
    if settings.trials < 1:
        yield f"sweep.trials={settings.trials} must be at least 1."
    if not settings.space:
        yield "sweep.space is empty: say what varies, such as '+sweep.space={train.learning_rate: [1e-4, 1e-3]}'."
    for key, values in settings.space.items():
        yield from _of_values(key, values, settings.sampler)
    if len(settings.objective) > 1 and settings.sampler is Sampler.tpe:
        yield "sweep.sampler=tpe is for one objective here: use sweep.sampler=nsga2 for two."
    if settings.pruner is not Pruner.none:
        yield from _of_pruner(experiment)


def _of_values(key: str, values: Any, sampler: Sampler | None) -> Iterator[str]:
    if isinstance(values, list):
        if not values:
            yield f"sweep.space has no values for {key}: list at least one."
        return
    if not isinstance(values, dict) or not {"low", "high"} <= values.keys() <= RANGE:
        yield f"sweep.space: {key} is neither a list nor a range such as {{low: 1e-5, high: 1e-3, log: true}}."
    elif not values["low"] < values["high"] or (values.get("log") and values["low"] <= 0):
        low, high = values["low"], values["high"]
        yield f"sweep.space: {key} goes from {low} to {high}: low must be below high, and above 0 for log."
    elif sampler is Sampler.grid:
        yield f"sweep.sampler=grid takes lists and sweep.space has a range for {key}: list its values, or use tpe."


def _of_pruner(experiment: Experiment) -> Iterator[str]:
    settings, pruner = experiment.sweep, experiment.sweep.pruner.value
    if len(settings.objective) > 1:
        yield f"sweep.pruner={pruner} works with one objective and there are {len(settings.objective)}: use none."
    metric = settings.objective[0] if settings.objective else ""
    if metric.startswith("eval/") and experiment.train.eval_steps is None:
        yield f"sweep.pruner={pruner} looks at {metric} while jobs train: set train.eval_steps=N."


def _name(sampler: Sampler | None) -> str:
    return sampler.value if sampler else "null"
