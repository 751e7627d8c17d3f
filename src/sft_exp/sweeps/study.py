"""An Optuna study in the sweep's folder; the only module that imports optuna."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, Trial, TrialState

from sft_exp.schema import Pruner, Sampler, Sweep

STARTUP_TRIALS = 5
"""Trials that must have ended before one is given up by the median."""


class Study:
    """Trials by number: values to try, values found, and whether one is hopeless."""

    def __init__(self, folder: Path, settings: Sweep, max_steps: int | None) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.settings = settings
        self.space = {key: distribution(values) for key, values in settings.space.items()}
        self.study = optuna.create_study(
            study_name="sweep", storage=f"sqlite:///{folder.absolute()}/study.db", load_if_exists=True,
            directions=[each.value for each in settings.direction], pruner=pruner(settings, max_steps),
        )  # fmt: skip
        known = self.study.get_trials(deepcopy=False)
        # With the seed of the first start a sampler would draw the values of the first trials again.
        self.study.sampler = sampler(settings, settings.seed + len(known))
        if settings.sampler is Sampler.grid and not known:
            for point in itertools.islice(grid(settings.space), settings.trials):
                self.study.enqueue_trial(point)

    def asked(self) -> list[FrozenTrial]:
        """Trials whose values are chosen, ended or not."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if trial.state is not TrialState.WAITING]

    @property
    def exhausted(self) -> bool:
        """Whether all trials were asked for."""
        wanted = self.settings.trials
        if self.settings.sampler is Sampler.grid:
            wanted = min(wanted, sum(1 for _ in grid(self.settings.space)))
        return len(self.asked()) >= wanted

    def ask(self) -> FrozenTrial:
        """The next trial, with its values."""
        trial = self.study.ask(self.space)
        return self.study.get_trials(deepcopy=False)[trial.number]

    def report(self, number: int, value: float, step: int) -> bool:
        """Take an intermediate value; whether the trial is hopeless. A resumed job tells the first ones again."""
        frozen = self._frozen(number)
        if step in frozen.intermediate_values:
            return False
        trial = Trial(self.study, frozen._trial_id)
        trial.report(value, step)
        return bool(trial.should_prune())

    def tell(self, number: int, state: str, values: list[float] | None) -> None:
        """Record how a trial ended; a second time changes nothing."""
        if self._frozen(number).state.is_finished():
            return
        if state == "pruned":
            self.study.tell(number, state=TrialState.PRUNED)
        elif state == "finished" and values:
            self.study.tell(number, values)
        else:
            self.study.tell(number, state=TrialState.FAIL)

    def best(self) -> Sequence[FrozenTrial]:
        """The best trial, or those of several objectives of which none is better in all."""
        return [trial for trial in self.study.best_trials if trial.values]

    def _frozen(self, number: int) -> FrozenTrial:
        return self.study.get_trials(deepcopy=False)[number]


def distribution(values: Any) -> BaseDistribution:
    """What Optuna draws from: a list of choices, or a range of whole or real numbers."""
    if isinstance(values, list):
        return CategoricalDistribution(values)
    low, high, log, step = values["low"], values["high"], bool(values.get("log")), values.get("step")
    if all(isinstance(each, int) for each in (low, high, step or 1)):
        return IntDistribution(low, high, log=log, step=step or 1)
    return FloatDistribution(float(low), float(high), log=log, step=step)


def grid(space: dict[str, list[Any]]) -> Any:
    """Every combination."""
    return (dict(zip(space, point, strict=True)) for point in itertools.product(*space.values()))


def sampler(settings: Sweep, seed: int) -> optuna.samplers.BaseSampler:
    """The sampler by its name; trials of a grid are queued, and a random one stands behind them."""
    if settings.sampler is Sampler.tpe:
        # Jobs that run at the same time should not all try the same place.
        return optuna.samplers.TPESampler(seed=seed, constant_liar=settings.per_device > 1)
    if settings.sampler is Sampler.nsga2:
        return optuna.samplers.NSGAIISampler(seed=seed, population_size=min(50, max(4, settings.trials // 4)))
    return optuna.samplers.RandomSampler(seed=seed)


def pruner(settings: Sweep, max_steps: int | None) -> optuna.pruners.BasePruner:
    """The pruner by its name; resources are training steps."""
    if settings.pruner is Pruner.median:
        return optuna.pruners.MedianPruner(STARTUP_TRIALS, settings.pruner_warmup)
    if settings.pruner is Pruner.hyperband:
        return optuna.pruners.HyperbandPruner(max(1, settings.pruner_warmup), max_steps or "auto")
    return optuna.pruners.NopPruner()
