"""Everything that is looked at in one run: built once, asked at each step that is probed."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from sft_exp.probes import heldout, prompts, thinking
from sft_exp.probes.answers import Answer, Speaker
from sft_exp.probes.forgetting import TOKENS, GeneralTexts
from sft_exp.probes.heldout import References
from sft_exp.probes.measures import Setting, measure
from sft_exp.probes.prompts import Prompt
from sft_exp.random_weights import whole
from sft_exp.rundir import RunDir
from sft_exp.schema import AdapterKind, Experiment
from sft_exp.splits import Splits

BASE = "base"
"""Folder of the base's log-probabilities."""


@dataclass(frozen=True)
class Look:
    """What was seen at one step."""

    metrics: dict[str, float]
    answers: list[Answer]
    """To `Session.prompts`."""
    scored: dict[str, list[Answer]]
    """Answers to held-out rows by the name of their split, `eval` or `test`, where these were asked for."""


class Session:
    """The prompts, texts and rows of one run, and the model that is asked."""

    def __init__(self, experiment: Experiment, run: RunDir, trainer: Any, rows: Splits) -> None:
        settings = experiment.eval
        self.trainer, self.tokenizer, self.run = trainer, trainer.processing_class, run
        self.together = experiment.zero.stage == 3
        self.prompts = prompts.load(settings.prompts, settings.count)
        self._prompt_ids = [self._encode(prompt) for prompt in self.prompts]
        self.setting = Setting(tuple(experiment.model.special_tokens), self._prompted_think())
        count, end = settings.answers or 0, self.tokenizer.eos_token_id
        self.splits = {
            "eval": heldout.rows(rows.held_out, end, count), "test": heldout.rows(rows.test, end, count)
        }  # fmt: skip
        self.known = self.splits["eval"] or self.splits["test"] or self._training_rows(rows, end)
        """Rows by which it is told what answers should be like."""
        self.unseen = References(self.splits["eval"] or self.splits["test"], self.together)
        self.general = GeneralTexts(
            self._general(), trainer.model.config.get_text_config().vocab_size, run.probes / BASE,
            self._adapter_off(experiment), self.together,
        )  # fmt: skip
        self._tokens, self._batch = settings.tokens or 0, settings.batch

    def look(self, *, base: bool, scored: bool) -> Look:
        """Ask the model as it is; `base` also remembers it as what later ones are compared with."""
        model = self.trainer.model
        speaker = Speaker(model, self.tokenizer, self._tokens, self._batch, self.together)
        asked = {name: [row.prompt for row in rows] for name, rows in self.splits.items() if scored}
        answers = speaker.answer(self._prompt_ids + [ids for split in asked.values() for ids in split])
        own, rest = answers[: len(self.prompts)], answers[len(self.prompts) :]
        sorted_out = {}
        for name, split in asked.items():
            sorted_out[name], rest = rest[: len(split)], rest[len(split) :]
        metrics = measure(self.prompts, own, self.setting) | self._likelihoods(model, base)
        return Look(metrics, own, {name: found for name, found in sorted_out.items() if found})

    def _likelihoods(self, model: Any, base: bool) -> dict[str, float]:
        forgetting = self.general.start(model) if base else self.general.compare(model)
        metrics = {"probe/perplexity": forgetting.perplexity}
        if forgetting.kl is not None and forgetting.agreement is not None:
            metrics |= {"probe/kl": forgetting.kl, "probe/top1_agreement": forgetting.agreement}
        if (found := self.unseen.likelihood(model)) is not None:
            metrics["probe/unseen_loss"] = found.loss
            if found.p_end is not None:
                metrics["probe/p_eos"] = found.p_end
        return metrics

    def facts(self) -> dict[str, Any]:
        """What the rows say about answers: the fields `ends_trained`, `short` and `expected_tokens` of the evidence."""
        ended = [row for row in self.known if row.end is not None]
        texts = [self.tokenizer.decode(row.reference) for row in self.known]
        using = [bool(thinking.occurrences(text, self.setting.added_tokens)) for text in texts]
        return {
            "ends_trained": fmean(row.end_trained for row in ended) if ended else None,
            "short": fmean(row in ended and len(row.reference) < self._tokens for row in self.known) if ended else 0.0,
            "expected_tokens": fmean(using) if using else 0.0,
        }

    def added_rows(self) -> torch.Tensor | None:
        """Rows of the added tokens in the input matrix: float32 of shape (tokens, hidden) on the CPU."""
        if not self.setting.added_tokens:
            return None
        ids = torch.tensor(self.tokenizer.convert_tokens_to_ids(list(self.setting.added_tokens)))
        table = self.trainer.model.get_input_embeddings()
        with whole(table.weight):
            return table(ids.to(table.weight.device)).float().cpu()

    def reference(self, name: str) -> list[str]:
        """Reference answers of a split, as text."""
        return [self.tokenizer.decode(row.reference).strip() for row in self.splits[name]]

    def prompt_text(self, name: str) -> list[str]:
        """Prompts of a split, as text with control tokens."""
        return [self.tokenizer.decode(row.prompt) for row in self.splits[name]]

    def _encode(self, prompt: Prompt) -> list[int]:
        if not self.tokenizer.chat_template:
            return list(self.tokenizer(prompt.text)["input_ids"])
        return list(self.tokenizer(self._rendered(prompt.text), add_special_tokens=False)["input_ids"])

    def _rendered(self, text: str) -> str:
        messages = [{"role": "user", "content": text}]
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def _prompted_think(self) -> bool:
        return bool(self.tokenizer.chat_template) and self._rendered("Hello").rstrip().endswith(thinking.OPEN)

    def _general(self) -> list[list[int]]:
        ids = [list(self.tokenizer(text)["input_ids"])[:TOKENS] for text in prompts.general_texts()]
        return [text for text in ids if len(text) > 1]

    def _training_rows(self, rows: Splits, end: int) -> list[heldout.Row]:
        return heldout.rows(rows.train, end, 32) if hasattr(rows.train, "select") else []

    def _adapter_off(self, experiment: Experiment) -> Callable[[], AbstractContextManager[Any]] | None:
        if experiment.adapter.kind is AdapterKind.full:
            return None
        off: Callable[[], AbstractContextManager[Any]] = self.trainer.model.disable_adapter
        return off
