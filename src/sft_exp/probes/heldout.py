"""Rows that are not trained: their prompts, reference answers, and what the model thinks of the latter."""

from dataclasses import dataclass
from typing import Any

import torch

from sft_exp.labels import IGNORED
from sft_exp.probes.prompts import spread
from sft_exp.probes.ranks import gathered, share

LONGEST = 1024
"""Tokens of a row that are looked at."""


@dataclass(frozen=True)
class Row:
    """The last trained span of a row and what stands before it."""

    prompt: list[int]
    reference: list[int]
    """Without the end token."""
    end: int | None
    """The end token behind the reference, trained or not; None if the row was cut off before it."""
    end_trained: bool


@dataclass(frozen=True)
class Likelihood:
    """How likely the references are, teacher-forced."""

    loss: float
    """Nats per token, ends not counted."""
    p_end: float | None
    """Mean probability of the end token where answers end."""


def rows(dataset: Any, end: int, count: int) -> list[Row]:
    """Up to `count` rows spread over a split with columns input_ids and labels; texts without a prompt are left out."""
    if dataset is None:
        return []
    chosen = dataset.select(spread(list(range(len(dataset))), count))
    return [row for each in chosen if (row := split(each["input_ids"], each["labels"], end))]


def split(ids: list[int], labels: list[int], end: int) -> Row | None:
    """Cut one row at its last trained span; None where nothing stands before it."""
    trained = [at for at, label in enumerate(labels) if label != IGNORED]
    if not trained:
        return None
    last = trained[-1]
    first = next((at + 1 for at in range(last, -1, -1) if labels[at] == IGNORED), 0)
    if first == 0:
        return None
    end_trained = ids[last] == end
    stop = last if end_trained else last + 1
    ended = end_trained or (stop < len(ids) and ids[stop] == end)
    return Row(ids[:first], ids[first:stop], end if ended else None, end_trained)


@dataclass
class References:
    """Measures the likelihood of rows' references."""

    rows: list[Row]
    together: bool
    """ZeRO-3: every rank must run as many forward passes."""

    def likelihood(self, model: Any) -> Likelihood | None:
        """Sums over all rows, on every rank; None where there is no row."""
        if not self.rows:
            return None
        found = {at: self._sums(model, self.rows[at]) for at in share(range(len(self.rows)), equal=self.together)}
        known = {at: row for part in gathered(found) for at, row in part.items()}
        loss, tokens, p_end, ends = (sum(column) for column in zip(*known.values(), strict=True))
        return Likelihood(loss / max(tokens, 1), p_end / ends if ends else None)

    def _sums(self, model: Any, row: Row) -> tuple[float, int, float, int]:
        """Summed loss and tokens of the reference, and the probability of its end with 1 where it has one."""
        whole = row.prompt + row.reference + ([row.end] if row.end is not None else [])
        labels = [IGNORED] * len(row.prompt) + whole[len(row.prompt) :]
        ids = torch.tensor([whole[:LONGEST]], device=model.device)
        targets = torch.tensor([labels[:LONGEST]], device=model.device)
        # TRL's forward: log-probabilities of labels without the full logits.
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=targets, fused_lm_head=True)
        log_probs = output.log_probs[0].double()[len(row.prompt) - 1 :]
        if row.end is None or len(whole) > LONGEST:
            return float(-log_probs.sum()), len(log_probs), 0.0, 0
        return float(-log_probs[:-1].sum()), len(log_probs) - 1, float(log_probs[-1].exp()), 1
