"""What a model has forgotten: perplexity of general texts, and its divergence from the base model on them."""

import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sft_exp.probes.ranks import gathered, share

TOKENS = 128
"""Tokens of each text."""
STORED = 128 * 2**20
"""Bytes of base log-probabilities on disk, at most: they decide at how many positions the divergence is taken."""


@dataclass(frozen=True)
class Forgetting:
    """Means over predicted tokens, in nats."""

    nll: float
    """Negative log-likelihood of all tokens but the first of each text."""
    kl: float | None
    """KL(base || model), mean over the chosen positions; None at the base itself."""
    agreement: float | None
    """Share of the chosen positions at which both would choose the same token."""

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-likelihood."""
        return math.exp(min(self.nll, 700.0))


@dataclass
class GeneralTexts:
    """The texts, and the base's log-probabilities: asked of the base by `base`, or stored in a folder at step 0."""

    texts: list[list[int]]
    """Token ids of each text, two at least."""
    vocabulary: int
    """Rows of the output head."""
    folder: Path
    base: Callable[[], AbstractContextManager[Any]] | None
    """Makes the model its own base while it is entered (an adapter switched off); None stores log-probabilities."""
    together: bool
    """ZeRO-3: every rank must run as many forward passes."""

    def start(self, model: Any) -> Forgetting:
        """Measure the base, and remember it."""
        return self._measure(model, self._remember if self.base is None else None)

    def compare(self, model: Any) -> Forgetting:
        """Measure the model against the base."""
        return self._measure(model, self._divergence)

    def positions(self, at: int) -> torch.Tensor:
        """Predicted positions of text `at` where the divergence is taken, at equal distances over all texts."""
        lengths = [len(text) - 1 for text in self.texts]
        limit = max(len(self.texts), STORED // (4 * self.vocabulary))
        step = max(1.0, sum(lengths) / limit)
        first = sum(lengths[:at])
        chosen = {
            math.ceil(number * step) for number in range(int(first / step), int((first + lengths[at]) / step) + 1)
        }
        return torch.tensor(sorted(place - first for place in chosen if first <= place < first + lengths[at]))

    def _measure(
        self, model: Any, compare: Callable[[Any, int, torch.Tensor], tuple[float, float, int]] | None
    ) -> Forgetting:
        mine = share(range(len(self.texts)), equal=self.together)
        found = {}
        for at in mine:
            log_probs = self.log_probs(model, at)
            ids = torch.tensor(self.texts[at][1:], device=log_probs.device)
            nll = -log_probs.gather(-1, ids[:, None]).sum()
            found[at] = (float(nll), len(ids), *(compare(model, at, log_probs) if compare else (0.0, 0.0, 0)))
        rows = {at: row for part in gathered(found) for at, row in part.items()}
        nll, tokens, kl, same, places = (math.fsum(column) for column in zip(*rows.values(), strict=True))
        return Forgetting(nll / tokens, kl / places if places else None, same / places if places else None)

    def log_probs(self, model: Any, at: int) -> torch.Tensor:
        """Log-probabilities of text `at`: float64 of shape (tokens - 1, vocabulary)."""
        ids = torch.tensor([self.texts[at]], device=model.device)
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, :-1]
        return logits.double().log_softmax(-1)

    def _remember(self, _: Any, at: int, log_probs: torch.Tensor) -> tuple[float, float, int]:
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._file(at).with_suffix(f".{os.getpid()}")  # two ranks may be dealt the same text
        torch.save(log_probs[self.positions(at).to(log_probs.device)].float().cpu(), unfinished)
        unfinished.replace(self._file(at))
        return 0.0, 0.0, 0

    def _divergence(self, model: Any, at: int, log_probs: torch.Tensor) -> tuple[float, float, int]:
        places = self.positions(at).to(log_probs.device)
        ours = log_probs[places]
        if self.base is None:
            theirs = torch.load(self._file(at), weights_only=True).to(ours.device).double()
        else:
            with self.base():
                theirs = self.log_probs(model, at)[places]
        same = float((theirs.argmax(-1) == ours.argmax(-1)).sum())
        return float(divergence(theirs, ours).sum()), same, len(places)

    def _file(self, at: int) -> Path:
        return self.folder / f"base_log_probs_{at}.pt"


def divergence(base: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """KL(base || model) from log-probabilities: shape (..., vocabulary) -> (...), in nats."""
    return (base.exp() * (base - model)).sum(-1)
