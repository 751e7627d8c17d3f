"""Fills a folder of the cache: every row is read, judged, encoded and written once, then put on its side."""

import gc
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sft_exp import arrow, language, preview
from sft_exp.chunks import Item, encoded
from sft_exp.conversation import BadRow, Conversation
from sft_exp.errors import ConfigError
from sft_exp.labels import Encoded, Encoder, Result
from sft_exp.prepared import Prepared
from sft_exp.rows import Place
from sft_exp.schema import Dataset
from sft_exp.selection import Selection
from sft_exp.sources import Source
from sft_exp.tally import Tally

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HEAD = 1_000
"""Rows of a stream that are judged before training."""
PREVIEWS, PREVIEW_TOKENS = 3, 1000
"""Rows that the report shows, and how much of each at most."""


def build(
    folder: Path, fingerprint: str, config: Dataset, sources: Sequence[Source], tokenizer: "PreTrainedTokenizerBase"
) -> None:
    """Write the rows of all sources; the side of a row is decided when all are known."""
    if config.streaming:  # the others are read while training
        sources = [replace(source, limit=min(source.limit or HEAD, HEAD)) for source in sources]
    encoder = Encoder(tokenizer, max_length=config.max_length, loss=config.loss, train_end=config.train_end)
    report = new_report(fingerprint, config, sources, encoder)
    tally, sample = Tally(report), language.Sample()
    everything = folder / "all.arrow"
    with _rare_collection(), arrow.writer(everything) as stream:
        for chunk, results in encoded(Selection(report, config, sources).choose(), encoder, config.num_proc):
            good = list(accepted(report, chunk, results, config))
            for place, part, conversation, row in good:
                tally.add(place, part, conversation, row)
                sample.add(conversation)
                _preview(report, place, row, tokenizer)
            stream.write_batch(arrow.batch([(place, row) for place, _, _, row in good]))
    side = tally.finish([source.weight for source in sources], config)
    report.languages = sample.shares()
    arrow.distribute(everything, [folder / split / "data.arrow" for split in ("train", "eval", "test")], side)
    everything.unlink()
    np.save(folder / "train_lengths.npy", tally.train_lengths(side))
    (folder / "report.json").write_text(json.dumps(asdict(report), ensure_ascii=False), encoding="utf-8")


@contextmanager
def _rare_collection() -> Iterator[None]:
    """Look for garbage less often: rows are many objects without cycles, and the search costs a seventh of the time."""
    usual = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)


def new_report(fingerprint: str, config: Dataset, sources: Sequence[Source], encoder: Encoder) -> Prepared:
    return Prepared(
        fingerprint=fingerprint,
        folder="",  # not where it is built, but where it is read
        streamed=config.streaming,
        source=" + ".join(source.name for source in sources),
        max_length=config.max_length,
        encodings={name: encoding for source in sources for name, encoding in source.encodings.items()},
        sources={source.name: {"rows": 0, "kept": 0, "used": 0} for source in sources},
        added_system=encoder.added_system,
        split_marks=list(encoder.marks.in_pieces),
        end_text=encoder.marks.end_text,
        end_token=encoder.marks.end_token,
        text_end=encoder.marks.eos,
        control_tokens=encoder.control_tokens,
    )


def _preview(report: Prepared, place: Place, row: Encoded, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Keep the first rows as the model sees them."""
    if len(report.previews) < PREVIEWS:
        cut = PREVIEW_TOKENS if len(row.input_ids) > PREVIEW_TOKENS else None
        pieces = preview.pieces(row.input_ids[:cut], row.labels[:cut], tokenizer)
        report.previews.append({"place": str(place), "pieces": [list(piece) for piece in pieces], "cut": cut})


def accepted(
    report: Prepared, chunk: Sequence[Item], results: Sequence[Result], config: Dataset
) -> Iterator[tuple[Place, int, Conversation, Encoded]]:
    """The rows of a chunk that are trained; the others are counted."""
    for (place, part, conversation), result in zip(chunk, results, strict=True):
        if isinstance(result, ConfigError):
            raise ConfigError(f"{place}: {result}") from result
        if isinstance(result, BadRow):
            report.drop(place, result.reason, result.detail)
        elif result.answer_truncated:
            report.dropped_tokens += result.length
            report.drop(place, "answer_truncated", f"its answer lies beyond dataset.max_length={config.max_length}")
        else:
            yield place, part, conversation, result
