"""The rows of a run as its ranks read them: training, evaluation and test."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np

from sft_exp import dataset, stream
from sft_exp.rundir import RunDir
from sft_exp.schema import Experiment

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass
class Splits:
    """Columns input_ids and labels; None where there is no row."""

    train: datasets.Dataset | datasets.IterableDataset
    """With the position of each row as `index`, unless it is a stream."""
    held_out: datasets.Dataset | None
    test: datasets.Dataset | None


def load(
    experiment: Experiment, run: RunDir, data: dict[str, Any], tokenizer: "PreTrainedTokenizerBase", *, records: bool
) -> Splits:
    """Map the prepared files, or open the stream; one rank `records` what became of a stream's rows."""
    folder = Path(data["folder"])
    held_out, test = (_columns(folder, name) if data[f"{name}_rows"] else None for name in ("eval", "test"))
    if experiment.dataset.streaming:
        return Splits(stream.training_rows(experiment, tokenizer, run, records=records), held_out, test)
    rows = _columns(folder, "train")
    # Beside the mapped file, which is not copied: 4 ms for 200,000 rows.
    return Splits(rows.add_column("index", np.arange(len(rows), dtype=np.int64)), held_out, test)


def _columns(folder: Path, name: str) -> datasets.Dataset:
    return dataset.load(folder, name).select_columns(["input_ids", "labels"])
