"""Rows read while training and stored nowhere: the reading, judging and labelling of `build`, row after row.

The preparation has judged the first `HEAD` rows and taken the evaluation rows from them. Bad rows further on are left
out and counted in `stream.json`; nothing is remembered of the rows, so that duplicates are trained.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sft_exp import rundir
from sft_exp.build import accepted, new_report
from sft_exp.chunks import encoded
from sft_exp.labels import Encoder
from sft_exp.rundir import RunDir
from sft_exp.schema import Experiment
from sft_exp.selection import Selection
from sft_exp.sources import open_sources
from sft_exp.tally import TRAIN, side_of

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

BUFFER = 10_000
"""Rows among which the next one is drawn, where rows are shuffled."""


def training_rows(
    experiment: Experiment, tokenizer: "PreTrainedTokenizerBase", run: RunDir, *, records: bool
) -> "datasets.IterableDataset":
    """Columns input_ids and labels; every rank reads all rows and trains its share. One of them `records` counts."""
    import datasets

    features = {name: datasets.List(datasets.Value("int32")) for name in ("input_ids", "labels")}
    made: datasets.IterableDataset = datasets.IterableDataset.from_generator(
        _Rows(experiment, tokenizer, run if records else None), features=datasets.Features(features)
    )
    return made.shuffle(seed=experiment.train.seed, buffer_size=BUFFER) if experiment.dataset.shuffle else made


class _Rows:
    """One pass over the data for each call."""

    def __init__(self, experiment: Experiment, tokenizer: "PreTrainedTokenizerBase", run: RunDir | None) -> None:
        self._config = experiment.dataset
        self._encoder = Encoder(
            tokenizer, max_length=self._config.max_length, loss=self._config.loss, train_end=self._config.train_end
        )
        self._run = run

    def __call__(self) -> Iterator[dict[str, Any]]:
        config = self._config
        with tempfile.TemporaryDirectory() as cache:  # for digests of files, of which a stream has none
            sources = open_sources(config, Path(cache))
        report = new_report("", config, sources, self._encoder)
        selection = Selection(report, config, sources, distinct=False)
        for chunk, results in encoded(selection.choose(), self._encoder, processes=1):
            good = list(accepted(report, chunk, results, config))
            self._record({"rows": report.rows, "dropped": report.dropped, "examples": report.examples})
            for _, _, conversation, row in good:
                if side_of(conversation.digest, config.eval_fraction, config.test_fraction) == TRAIN:
                    yield {"input_ids": row.input_ids, "labels": row.labels}

    def _record(self, counts: dict[str, Any]) -> None:
        if self._run is not None:
            rundir.write_json(self._run.stream, counts)
