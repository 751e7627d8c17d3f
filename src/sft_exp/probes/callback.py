"""Probes at the start, at evaluations and at the end of a training loop, and the verdict."""

import time
from typing import Any

import torch
from transformers import TrainerCallback

from sft_exp import rundir, task_metrics
from sft_exp.probes import ranks, records, table, verdict
from sft_exp.probes.quiet import quiet
from sft_exp.probes.session import Look, Session
from sft_exp.probes.verdict import Evidence
from sft_exp.rundir import RunDir
from sft_exp.schema import Experiment, Weights


class Probes(TrainerCallback):  # type: ignore[misc]
    """Looks at the model inside the loop's events: only there is it complete under DeepSpeed."""

    def __init__(self, experiment: Experiment, run: RunDir, session: Session) -> None:
        self.experiment, self.settings, self.run, self.session = experiment, experiment.eval, run, session
        self.trainer = session.trainer
        self.base: dict[str, Any] = {}
        """Metrics and scores of step 0; empty where a resumed run has none."""
        self._started = self._spent = self._cost = 0.0
        """When the loop began; seconds of all looks, and of the last one."""
        self._evaluations = 0
        self._training = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._started, self._training = time.perf_counter(), True
        table.forget_after(self.run, state.global_step)
        if records.base_file(self.run).exists():
            self.base = rundir.read_json(records.base_file(self.run))
        elif state.global_step == 0:
            self.run.probes.mkdir(exist_ok=True)
            with quiet(self.trainer.model, self.trainer.meter):
                if (rows := self.session.added_rows()) is not None and self.trainer.is_world_process_zero():
                    torch.save(rows, records.rows_file(self.run))
            self._look(state, base=True, scored=True)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self._training or state.global_step >= state.max_steps:  # the end has its own look
            return
        self._evaluations += 1
        if self._evaluations % self.settings.every or not self._affordable(state):
            return
        metrics, _ = self._look(state, base=False, scored=False)
        reasons = self._judge(metrics, state, final=False)
        if self.settings.stop_degenerate and reasons:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training = False
        if not self.base:
            return
        metrics, scores = self._look(state, base=False, scored=True)
        reasons = self._judge(metrics, state, final=True)
        if self.trainer.is_world_process_zero():
            self._write(reasons, metrics, scores)

    def _affordable(self, state: Any) -> bool:
        """Whether the run's probes, this and the last one included, stay within the budget as far as can be told."""
        device = self.trainer.args.device
        elapsed = ranks.agreed(time.perf_counter() - self._started, device)
        spent, cost = ranks.agreed(self._spent, device), ranks.agreed(self._cost, device)
        whole: float = (elapsed - spent) * state.max_steps / max(state.global_step, 1)
        return bool(spent + 2 * cost <= self.settings.budget * whole)

    def _look(self, state: Any, *, base: bool, scored: bool) -> tuple[dict[str, float], dict[str, float]]:
        """Metrics and, where they are asked for, scores of the model as it is, recorded."""
        begun = time.perf_counter()
        with quiet(self.trainer.model, self.trainer.meter):
            look = self.session.look(base=base, scored=scored)
        metrics, scores = self._against_base(look.metrics, base), self._scores(look)
        if base:
            self.base = {"metrics": metrics, "scores": scores}
        self._cost = time.perf_counter() - begun
        self._spent += self._cost
        share = self._spent / max(time.perf_counter() - self._started, 1e-9)
        cost = {"probe/seconds": self._cost, "probe/share_of_run": share}
        if self.trainer.is_world_process_zero():
            records.add_answers(self.run, state.global_step, self.session, look)
            if base:
                rundir.write_json(records.base_file(self.run), self.base)
        self.trainer.append(metrics | cost | scores)
        return metrics, scores

    def _against_base(self, metrics: dict[str, float], base: bool) -> dict[str, float]:
        if base:
            return metrics
        ratio = metrics["probe/perplexity"] / self.base["metrics"]["probe/perplexity"]
        return {**metrics, "probe/perplexity_ratio": ratio}

    def _scores(self, look: Look) -> dict[str, float]:
        """Scores of answers to held-out rows as `eval/exact_match` and the like."""
        found: dict[str, float] = {}
        for split, answers in look.scored.items():
            texts, references = [answer.text for answer in answers], self.session.reference(split)
            scores = task_metrics.score(texts, references, self.settings.metrics)
            found |= {f"{split}/{name}": value for name, value in scores.items()}
        return found

    def _judge(self, metrics: dict[str, float], state: Any, *, final: bool) -> list[str]:
        losses = [float(entry["loss"]) for entry in state.log_history if "loss" in entry]
        moved = self._moved() if final else None
        evidence = Evidence(
            base=self.base["metrics"], last=metrics, limits=self.settings.limits, final=final, rows_moved=moved,
            train_loss=losses[-1] if losses else None, first_loss=losses[0] if losses else None,
            **self.session.facts(),
        )  # fmt: skip
        return verdict.judge(evidence)

    def _moved(self) -> float | None:
        """How far the least moved row of an added token is from where it began, as a share of its norm."""
        with quiet(self.trainer.model, self.trainer.meter):
            rows = self.session.added_rows()
        if rows is None or not (records.rows_file(self.run)).exists():
            return None
        before = torch.load(records.rows_file(self.run), weights_only=True)
        return float(((rows - before).norm(dim=-1) / before.norm(dim=-1).clamp(min=1e-12)).min())

    def _write(self, reasons: list[str], metrics: dict[str, float], scores: dict[str, float]) -> None:
        random = self.experiment.model.weights is Weights.random
        word = verdict.NOT_JUDGED if random else verdict.DEGENERATE if reasons else verdict.HEALTHY
        headline = f"{word} (the weights began random)" if random else verdict.headline(reasons)
        rundir.write_json(
            self.run.behaviour,
            {
                "verdict": word, "headline": headline, "reasons": reasons, "metrics": metrics,
                "base": self.base["metrics"],
                "scores": {"base": self.base["scores"], "trained": scores},
            },
        )  # fmt: skip
