"""Prepares a dataset once: reads, normalises, encodes, splits and writes it under a name that is a hash of its inputs.

<cache>/<fingerprint>/train/data.arrow   columns input_ids, labels, row (the place, such as `chats.jsonl:17`)
<cache>/<fingerprint>/eval/data.arrow
<cache>/<fingerprint>/report.json        the `Prepared`
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from sft_exp import labels, normalize, rows
from sft_exp.errors import ConfigError
from sft_exp.labels import Encoded, Encoder
from sft_exp.normalize import BadRow, Conversation, UnknownColumns
from sft_exp.rows import Place, Row
from sft_exp.schema import Dataset, DatasetKind

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

_CHUNK = 256
_EXAMPLES = 5
_SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32())), ("labels", pa.list_(pa.int32())), ("row", pa.string())])
Result = Encoded | BadRow | ConfigError


@dataclass(kw_only=True)
class Prepared:
    """What was prepared, as it stands in report.json."""

    fingerprint: str
    folder: str
    source: str
    encodings: dict[str, str] = field(default_factory=dict)
    """Text encoding of each file that is not plain UTF-8."""
    rows: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    formats: dict[str, int] = field(default_factory=dict)
    """Kept rows per format."""
    train_rows: int = 0
    eval_rows: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    longest: int = 0
    """Tokens of the longest kept row, after the cut."""
    part_truncated: int = 0
    """Kept rows that lost tokens to max_length."""
    rows_without_end: int = 0
    """Kept rows that train no end token."""
    think_blocks: int = 0
    """Reasoning blocks in trained text."""
    control_text_rows: int = 0
    """Kept rows whose text names control tokens; they were tokenised as text."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """First places, with detail, per reason of a drop or repair and of part_truncated."""

    @property
    def bad(self) -> int:
        """Dropped rows; duplicates are not bad."""
        return sum(count for reason, count in self.dropped.items() if reason != "duplicate")

    def drop(self, place: Place, reason: str, detail: str) -> None:
        """Counts a row that is not trained."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self.note(place, reason, detail)

    def note(self, place: Place, reason: str, detail: str = "") -> None:
        """Keeps the first places of a reason; half characters in a detail would break every later writer."""
        if len(found := self.examples.setdefault(reason, [])) < _EXAMPLES:
            found.append(f"{place} {detail}".strip().encode(errors="replace").decode())


@dataclass(slots=True)
class _Source:
    """Where rows come from, with what identifies their content."""

    name: str
    identity: list[Any]
    read: Callable[[], Iterator[Row]]
    encodings: dict[str, str]


def prepare(config: Dataset, tokenizer: PreTrainedTokenizerBase, *, cache: Path, seed: int) -> Prepared:
    """Makes the arrow files unless equal inputs made them before; refuses data that should not be trained."""
    del seed  # the split goes by content alone, so that runs with other seeds are measured on the same rows
    _check_names(config)
    source = _hub_source(config) if config.kind is DatasetKind.hub else _file_source(config)
    encoder = Encoder(tokenizer, max_length=config.max_length, loss=config.loss)
    fingerprint = _fingerprint(config, source, encoder)
    folder = cache / fingerprint
    if not (folder / "report.json").is_file():
        staging = cache / f".{fingerprint}.{uuid4().hex}"
        staging.mkdir(parents=True)
        try:
            report = Prepared(
                fingerprint=fingerprint, folder=str(folder), source=source.name, encodings=source.encodings
            )
            _fill(staging, report, config, source, encoder)
            _publish(staging, folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return Prepared(**{**json.loads((folder / "report.json").read_text()), "folder": str(folder)})


def load(folder: Path, split: str) -> datasets.Dataset:
    """The `train` or `eval` rows of a prepared folder, mapped from disk."""
    import datasets

    return datasets.Dataset.from_file(str(folder / split / "data.arrow"))


def _check_names(config: Dataset) -> None:
    problems = [
        f"dataset.role_map.{name}={role} is not a role: use one of {', '.join(normalize.ROLES)}"
        for name, role in config.role_map.items()
        if role not in normalize.ROLES
    ]
    known = sorted(normalize.COLUMNS | normalize.TURN_KEYS)
    problems += [
        f"dataset.columns.{old}={new} is not a known column: use one of {', '.join(known)}"
        for old, new in config.columns.items()
        if new not in known
    ]
    if not config.path:
        problems.append("dataset.path is not set: give a file, a folder, a glob or a hub id")
    if problems:
        raise ConfigError(*problems)


def _file_source(config: Dataset) -> _Source:
    files = rows.find_files(str(config.path))
    base = os.path.commonpath([file.parent for file in files])
    names = {file: os.path.relpath(file, base) for file in files}
    encodings = {}
    identity = []
    for file, name in names.items():
        try:
            with file.open("rb") as stream:
                identity.append([name, hashlib.file_digest(stream, "sha256").hexdigest()])
            if not name.endswith(".parquet") and (encoding := rows.encoding(file)) != "utf-8":
                encodings[name] = encoding
        except rows.UNREADABLE as error:
            raise ConfigError(f"dataset.path={file} cannot be read ({error}): copy or download it again") from error

    def read() -> Iterator[Row]:
        return chain.from_iterable(rows.read_rows(file, name) for file, name in names.items())

    return _Source(str(config.path) if len(files) > 1 else files[0].name, identity, read, encodings)


def _hub_source(config: Dataset) -> _Source:
    import datasets

    path = str(config.path)
    try:
        table = datasets.load_dataset(path, config.config, split=config.split, revision=config.revision)
    except Exception as error:  # unknown id, no network, gated, wrong split: the library has a class for each
        cause = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"dataset.path={path} cannot be loaded from the hub ({type(error).__name__}: {cause}): check "
            "dataset.path, .config, .split and .revision, or download it and use dataset.kind=files"
        ) from error

    def read() -> Iterator[Row]:
        return (Row(Place(path, at), rows.without_nulls(row)) for at, row in enumerate(table, 1))

    return _Source(path, [path, config.config, config.split, config.revision, table._fingerprint], read, {})


def _fingerprint(config: Dataset, source: _Source, encoder: Encoder) -> str:
    unused = {"name", "path", "num_proc"}  # the content counts, not what it is called or how fast it is made
    parts = [
        source.identity,
        {name: value for name, value in asdict(config).items() if name not in unused},
        encoder.identity,
        [Path(str(file)).read_text() for file in (rows.__file__, normalize.__file__, labels.__file__, __file__)],
        [importlib.metadata.version(name) for name in ("transformers", "tokenizers", "datasets")],
    ]
    return hashlib.sha256(json.dumps(parts, default=str, sort_keys=True).encode()).hexdigest()[:32]


def _publish(staging: Path, folder: Path) -> None:
    try:
        staging.rename(folder)
    except OSError:
        if not (folder / "report.json").is_file():  # else another process was first, with the same content
            raise


def _fill(staging: Path, report: Prepared, config: Dataset, source: _Source, encoder: Encoder) -> None:
    """Reads, judges and writes everything; the split is decided when all hashes are known."""
    everything = staging / "all.arrow"
    chats_with_end: list[bool] = []
    digests: list[bytes] = []
    chosen = _Chooser(report, config)
    with pa.OSFile(str(everything), "wb") as sink, pa.ipc.new_stream(sink, _SCHEMA) as writer:
        for chunk, results in _encoded(_chunks(chosen.rows(source.read())), encoder, config.num_proc):
            good: list[tuple[Place, Encoded]] = []
            for (place, conversation), result in zip(chunk, results, strict=True):
                encoded = _accepted(report, place, conversation, result, config)
                if encoded is None:
                    continue
                good.append((place, encoded))
                digests.append(conversation.digest)
                if conversation.kind != "text":
                    chats_with_end.append(encoded.end_trained)
            writer.write_batch(_batch(good))
    _judge(report, config, chosen)
    if chats_with_end and not any(chats_with_end):
        raise ConfigError(_no_end(report, config, encoder))
    in_eval = split(digests, config.eval_fraction)
    report.eval_rows = sum(in_eval)
    report.train_rows = report.kept - report.eval_rows
    _write_split(everything, staging / "train", [not held for held in in_eval])
    _write_split(everything, staging / "eval", in_eval)
    everything.unlink()
    (staging / "report.json").write_text(json.dumps(asdict(report), ensure_ascii=False, indent=1))


class _Chooser:
    """Turns distinct rows into conversations and counts what is left out."""

    def __init__(self, report: Prepared, config: Dataset) -> None:
        self._report = report
        self._config = config
        self._seen: set[bytes] = set()
        self.unknown_columns: dict[str, None] = {}
        self.recognised = False

    def rows(self, source: Iterator[Row]) -> Iterator[tuple[Place, Conversation]]:
        """Yields the rows that can be encoded."""
        for row in islice(source, self._config.limit):
            self._report.rows += 1
            if row.reason:
                self._report.drop(row.place, row.reason, row.detail)
                continue
            try:
                conversation = normalize.normalize(
                    row.value, role_map=self._config.role_map, columns=self._config.columns
                )
                key = _row_key(row.value)
            except RecursionError:
                self._report.drop(row.place, "invalid_json", "nested too deeply")
                continue
            except BadRow as error:
                self._note_columns(error)
                self._report.drop(row.place, error.reason, error.detail)
                continue
            self.recognised = True
            if key in self._seen:
                self._report.drop(row.place, "duplicate", "")
                continue
            self._seen.add(key)
            yield row.place, conversation

    def _note_columns(self, error: BadRow) -> None:
        if isinstance(error, UnknownColumns):
            self.unknown_columns.update(dict.fromkeys(error.columns))
        else:
            self.recognised = True


def _row_key(value: Any) -> bytes:
    # The whole row: one that says the same under another id was meant to be there, and is split by content.
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).digest()


def _chunks(items: Iterator[tuple[Place, Conversation]]) -> Iterator[list[tuple[Place, Conversation]]]:
    while chunk := list(islice(items, _CHUNK)):
        yield chunk


def _encoded(
    chunks: Iterable[list[tuple[Place, Conversation]]], encoder: Encoder, processes: int
) -> Iterator[tuple[list[tuple[Place, Conversation]], list[Result]]]:
    """Encodes chunk by chunk, in order, in this process or in several."""
    if processes <= 1:
        for chunk in chunks:
            yield chunk, encoder.encode([conversation for _, conversation in chunk])
        return
    # fork: the children take the tokenizer as it is, and nothing has to import the main module again
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, context, _adopt, (encoder,)) as pool:
        waiting: deque[tuple[list[tuple[Place, Conversation]], Future[list[Result]]]] = deque()
        try:
            for chunk in chunks:
                waiting.append((chunk, pool.submit(_encode_in_child, [conversation for _, conversation in chunk])))
                if len(waiting) > 2 * processes:  # no more rows in memory than keep the children busy
                    first, future = waiting.popleft()
                    yield first, future.result()
            for first, future in waiting:
                yield first, future.result()
        except BrokenProcessPool as error:
            raise ConfigError(
                f"a process that tokenised died, as for want of memory: lower dataset.num_proc={processes}"
            ) from error


_child_encoder: Encoder


def _adopt(encoder: Encoder) -> None:
    global _child_encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each child has one core
    _child_encoder = encoder


def _encode_in_child(conversations: list[Conversation]) -> list[Result]:
    return _child_encoder.encode(conversations)


def _accepted(
    report: Prepared, place: Place, conversation: Conversation, result: Result, config: Dataset
) -> Encoded | None:
    """Counts one encoded row; None if it is not trained."""
    if isinstance(result, ConfigError):
        raise ConfigError(f"{place}: {result}") from result
    if isinstance(result, BadRow):
        report.drop(place, result.reason, result.detail)
        return None
    if result.answer_truncated:
        report.drop(place, "answer_truncated", f"its answer lies beyond dataset.max_length={config.max_length}")
        return None
    report.kept += 1
    report.formats[conversation.format] = report.formats.get(conversation.format, 0) + 1
    for reason in conversation.repairs:
        report.repaired[reason] = report.repaired.get(reason, 0) + 1
        report.note(place, reason)
    if result.truncated:
        report.part_truncated += 1
        report.note(place, "part_truncated")
    report.tokens += len(result.input_ids)
    report.trained_tokens += result.trained_tokens
    report.longest = max(report.longest, len(result.input_ids))
    report.rows_without_end += not result.end_trained
    report.think_blocks += result.think_blocks
    report.control_text_rows += result.control_text
    return result


def _judge(report: Prepared, config: Dataset, chosen: _Chooser) -> None:
    """Refuses data with nothing, or with too little, to train on."""
    if not report.rows:
        raise ConfigError(f"{report.source} has no rows: give a file that has some")
    if chosen.unknown_columns and not chosen.recognised:
        known = "; ".join(f"{name} ({', '.join(columns)})" for name, columns in normalize.FORMATS.items())
        raise ConfigError(
            f"{report.source} has no row in a known format. Its columns: {', '.join(chosen.unknown_columns)}. "
            f"Known formats and their columns: {known}. Name the columns by dataset.columns, such as "
            f"+dataset.columns.{next(iter(chosen.unknown_columns))}=prompt"
        )
    share = report.bad / report.rows
    if share > config.max_bad_fraction or not report.kept:
        remedy = f"mend them or raise dataset.max_bad_fraction={config.max_bad_fraction:g} to {_above(share)}"
        details = [
            f"  {reason}: {count} rows, first {'; '.join(report.examples[reason])}"
            for reason, count in report.dropped.items()
            if reason != "duplicate"
        ]
        head = f"{report.source}: {report.bad} of {report.rows} rows cannot be trained"
        raise ConfigError(f"{head}: {remedy if report.kept else 'mend them'}", *details)


def _above(share: float) -> str:
    return f"{min(1.0, int(share * 1000 + 1) / 1000):g}"


def _no_end(report: Prepared, config: Dataset, encoder: Encoder) -> str:
    if encoder.end_token is None:
        mark = f"'{encoder.end_text}', which is no single token" if encoder.end_text else "nothing"
        return (
            f"the chat template ends an assistant turn with {mark}, so the model would not learn to stop: set "
            "model.chat_template=FILE.jinja to one that fits the tokenizer, or add the mark by model.special_tokens"
        )
    return (
        f"{report.source}: every one of {report.kept} rows loses the end of its answers to "
        f"dataset.max_length={config.max_length}, so the model would not learn to stop: raise it"
    )


def split(digests: Sequence[bytes], fraction: float) -> list[bool]:
    """True for rows kept for evaluation: by content hash, so that a row stays on its side when others are added."""
    distinct = sorted(set(digests))
    if fraction <= 0 or len(distinct) < 2:
        return [False] * len(digests)
    count = sum(int.from_bytes(digest[:8]) < fraction * 2**64 for digest in distinct)
    last = distinct[min(max(count, 1), len(distinct) - 1) - 1]  # one conversation at least on each side
    return [digest <= last for digest in digests]


def _batch(good: list[tuple[Place, Encoded]]) -> pa.RecordBatch:
    columns = {
        "input_ids": [encoded.input_ids for _, encoded in good],
        "labels": [encoded.labels for _, encoded in good],
        "row": [str(place) for place, _ in good],
    }
    return pa.RecordBatch.from_pydict(columns, schema=_SCHEMA)


def _write_split(everything: Path, folder: Path, wanted: list[bool]) -> None:
    folder.mkdir()
    at = 0
    with (
        pa.memory_map(str(everything)) as source,
        pa.OSFile(str(folder / "data.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, _SCHEMA) as writer,
    ):
        for batch in pa.ipc.open_stream(source):
            writer.write_batch(batch.filter(pa.array(wanted[at : at + batch.num_rows], pa.bool_())))
            at += batch.num_rows
