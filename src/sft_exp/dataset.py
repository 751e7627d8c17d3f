"""Prepares a dataset once: reads, normalises, encodes, splits and writes it under a name that is a hash of its inputs.

<cache>/<fingerprint>/train/data.arrow   columns input_ids, labels, row (the place, such as `chats.jsonl:17`)
<cache>/<fingerprint>/eval/data.arrow
<cache>/<fingerprint>/report.json        the `Prepared`
"""

import hashlib
import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sft_exp import arrow, staging
from sft_exp.chunks import encoded
from sft_exp.conversation import BadRow, Conversation
from sft_exp.errors import ConfigError
from sft_exp.labels import Encoded, Encoder, Result
from sft_exp.prepared import Prepared, no_end, refuse_bad
from sft_exp.rows import Place
from sft_exp.schema import Dataset
from sft_exp.selection import Selection
from sft_exp.sources import Source, open_sources

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

DECIDING = (
    "rows", "files", "digests", "textfile", "jsonrows", "csvrows", "tables", "reader", "hub", "mixture", "sources",
    "conversation", "fields", "messages", "normalize", "template", "layout", "labels", "prepared", "selection",
    "chunks", "arrow", "staging", "dataset",
)  # fmt: skip
"""Modules that decide what is written; a test compares them with the imports."""


def prepare(config: Dataset, tokenizer: "PreTrainedTokenizerBase", *, cache: Path) -> Prepared:
    """Make the arrow files unless equal inputs made them before; refuse data that should not be trained."""
    [source] = open_sources(config, cache)
    encoder = Encoder(tokenizer, max_length=config.max_length, loss=config.loss)
    fingerprint = _fingerprint(config, source, encoder)
    folder = cache / fingerprint
    if not (folder / staging.COMPLETE).is_file():
        staging.remove_stale(cache)
        report = Prepared(fingerprint=fingerprint, folder=str(folder), source=source.name, encodings=source.encodings)
        with staging.staged(folder) as unfinished:
            _fill(unfinished, report, config, source, encoder)
    written = json.loads((folder / staging.COMPLETE).read_text(encoding="utf-8"))
    return Prepared(**{**written, "folder": str(folder)})


def load(folder: Path, split: str) -> "datasets.Dataset":
    """The `train` or `eval` rows of a prepared folder, mapped from disk."""
    import datasets

    return datasets.Dataset.from_file(str(folder / split / "data.arrow"))


def _fingerprint(config: Dataset, source: Source, encoder: Encoder) -> str:
    unused = {"name", "path", "num_proc"}  # the content counts, not what it is called or how fast it is made
    parts = [
        source.identity,
        {name: value for name, value in asdict(config).items() if name not in unused},
        encoder.identity,
        [Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8") for module in DECIDING],
        [importlib.metadata.version(name) for name in ("transformers", "tokenizers", "datasets")],
    ]
    return hashlib.sha256(json.dumps(parts, default=str, sort_keys=True).encode()).hexdigest()[:32]


def _fill(folder: Path, report: Prepared, config: Dataset, source: Source, encoder: Encoder) -> None:
    """Read, judge and write everything; the split is decided when all hashes are known."""
    everything = folder / "all.arrow"
    selection = Selection(report, config)
    chats_with_end: list[bool] = []
    digests: list[bytes] = []
    with arrow.writer(everything) as stream:
        for chunk, results in encoded(selection.choose(source.read()), encoder, config.num_proc):
            good: list[tuple[Place, Encoded]] = []
            for (place, conversation), result in zip(chunk, results, strict=True):
                row = _accepted(report, place, conversation, result, config)
                if row is None:
                    continue
                good.append((place, row))
                digests.append(conversation.digest)
                if conversation.kind != "text":
                    chats_with_end.append(row.end_trained)
            stream.write_batch(arrow.batch(good))
    refuse_bad(report, config, selection.strange)
    if chats_with_end and not any(chats_with_end):
        raise no_end(report, config, encoder.marks)
    in_eval = split(digests, config.eval_fraction)
    report.eval_rows = sum(in_eval)
    report.train_rows = report.kept - report.eval_rows
    arrow.copy_rows(everything, folder / "train" / "data.arrow", [not held for held in in_eval])
    arrow.copy_rows(everything, folder / "eval" / "data.arrow", in_eval)
    everything.unlink()
    (folder / staging.COMPLETE).write_text(json.dumps(asdict(report), ensure_ascii=False, indent=1), encoding="utf-8")


def _accepted(
    report: Prepared, place: Place, conversation: Conversation, result: Result, config: Dataset
) -> Encoded | None:
    """Count one row; None if it is not trained."""
    if isinstance(result, ConfigError):
        raise ConfigError(f"{place}: {result}") from result
    if isinstance(result, BadRow):
        report.drop(place, result.reason, result.detail)
        return None
    if result.answer_truncated:
        report.drop(place, "answer_truncated", f"its answer lies beyond dataset.max_length={config.max_length}")
        return None
    report.keep(place, conversation, result)
    return result


def split(digests: Sequence[bytes], fraction: float) -> list[bool]:
    """True for rows kept for evaluation: by content hash, so that a row stays on its side when others are added."""
    distinct = sorted(set(digests))
    if fraction <= 0 or len(distinct) < 2:
        return [False] * len(digests)
    count = sum(int.from_bytes(digest[:8]) < fraction * 2**64 for digest in distinct)
    last = distinct[min(max(count, 1), len(distinct) - 1) - 1]  # one conversation at least on each side
    return [digest <= last for digest in digests]
