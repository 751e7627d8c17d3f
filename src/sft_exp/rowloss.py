"""The loss of each row of a batch, taken from the forward pass that trains it, and kept on the device until logged."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sft_exp import rowlog

KEY = "row_index"
"""Name in a batch of the rows' positions in the prepared data: int64 of shape (conversations,)."""


@dataclass
class RowCollator:
    """Another collator, whose batches also say which rows they are made of."""

    collate: Callable[[list[dict[str, Any]]], dict[str, Any]]

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Collate; a pack has one index for each of its conversations."""
        batch = self.collate(examples)
        if "index" in examples[0]:
            batch[KEY] = torch.cat([torch.as_tensor(example["index"]).view(-1) for example in examples])
        return batch


def sums(outputs: Any, rows: int, conversation: torch.Tensor | None) -> torch.Tensor:
    """Summed loss and trained tokens of each row: float32 of shape (2, rows).

    `outputs` are those of TRL's fused head, with log_probs and label_mask of shape (batch, length - 1), zero where
    nothing is trained. `conversation` is None where each sequence of the batch is one row; in a packed batch it has
    shape (1, length) and says to which of the rows each token belongs.
    """
    per_token = torch.stack([-outputs.log_probs.detach().float(), outputs.label_mask.float()])
    return per_row(per_token, rows, conversation)


def per_row(values: torch.Tensor, rows: int, conversation: torch.Tensor | None) -> torch.Tensor:
    """Sums over each row of what each predicted token has: (kinds, batch, length - 1) -> (kinds, rows); see `sums`."""
    if conversation is None:
        return values.sum(-1)
    # A loss belongs to the token that is predicted. Padding up to a multiple makes further conversations, of one
    # token without loss each.
    of = conversation[0, 1:].long().clamp(max=rows - 1)
    return values.new_zeros(len(values), rows).index_add_(1, of, values[:, 0])


class RowLosses:
    """Collects the losses of rows. Nothing is read from the device before `write`: that would stall it at each step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: Path | None = None
        self._steps: list[tuple[int, int]] = []
        """Step and number of rows of each forward pass since the last write."""
        self._rows: list[torch.Tensor] = []
        self._sums: list[torch.Tensor] = []

    def begin(self, *, rank: int, ranks: int, step: int) -> None:
        """Go on after a step that is done."""
        self._file = rowlog.begin(self._folder, rank=rank, ranks=ranks, step=step)

    def add(self, step: int, rows: torch.Tensor, outputs: Any, conversation: torch.Tensor | None) -> None:
        """Take the rows of one forward pass of a step; for the arguments see `sums`."""
        self._steps.append((step, len(rows)))
        self._rows.append(rows)
        self._sums.append(sums(outputs, len(rows), conversation))

    def write(self) -> None:
        """Move what was collected to the file."""
        if not self._rows or self._file is None:
            return
        rows, (loss, tokens) = torch.cat(self._rows).cpu(), torch.cat(self._sums, dim=-1).cpu()
        steps = [step for step, count in self._steps for _ in range(count)]
        rowlog.append(
            self._file,
            rowlog.records(
                step=steps,
                row=rows.numpy(),
                tokens=tokens.numpy(),
                loss=(loss / tokens).numpy(),  # a row without trained tokens has no loss: 0 / 0 is NaN
            ),
        )
        self._steps, self._rows, self._sums = [], [], []
