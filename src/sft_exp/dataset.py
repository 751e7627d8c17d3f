"""Prepares a dataset once: reads, normalises, encodes, splits and writes it under a name that is a hash of its inputs.

<cache>/<fingerprint>/train/data.arrow    columns input_ids, labels, row (the place, such as `chats.jsonl:17`)
<cache>/<fingerprint>/eval/, test/        the same
<cache>/<fingerprint>/train_lengths.npy   tokens of each training row
<cache>/<fingerprint>/report.json         the `Prepared`
"""

import errno
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sft_exp import staging
from sft_exp.errors import ConfigError
from sft_exp.schema import Dataset
from sft_exp.sources import Source, open_sources

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

    from sft_exp.prepared import Prepared

SPLITS = ("train", "eval", "test")
DECIDING = (
    "rows", "files", "digests", "textfile", "jsonrows", "csvrows", "tables", "reader", "hub", "mixture", "sources",
    "conversation", "fields", "messages", "normalize", "rendering", "reasoning", "separators", "training_template",
    "template", "turns", "layout", "tokeniser", "labels", "prepared", "selection", "chunks", "arrow", "staging",
    "dataset", "build", "tally", "lengths", "language", "preview",
)  # fmt: skip
"""Modules that decide what is written; a test compares them with the imports."""
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)
"""Errors of a place that cannot be written to."""
NOT_DECIDING = {"name", "path", "mixture", "num_proc", "max_bad_fraction", "shuffle"}
"""Fields that do not change what is written, or that the sources' identities stand for: content counts, not names."""


def prepare(
    config: Dataset, identity: Sequence[str], tokenizer: "Callable[[], PreTrainedTokenizerBase]", *, cache: Path
) -> "Prepared":
    """Find what equal inputs made before, or make it; `identity` is what decides the tokenizer's ids.

    The tokenizer is loaded only if there is work for it. Raises ConfigError where files cannot be read or the chat
    template does not fit the data; whether the rows should be trained is another question (`verdict`).
    """
    sources = open_sources(config, cache)
    fingerprint = _fingerprint(config, sources, identity)

    def build(folder: Path) -> None:
        from sft_exp.build import build as fill  # pyarrow and numpy: not needed where all is there

        fill(folder, fingerprint, config, sources, tokenizer())

    try:
        return read(staging.built(cache / fingerprint, build))
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise ConfigError(
            f"the prepared rows cannot be written to {cache} ({os.strerror(error.errno)}): make room there, or set "
            "SFT_EXP_CACHE=FOLDER to another place."
        ) from error


def read(folder: Path) -> "Prepared":
    """What is known of a prepared folder."""
    from sft_exp.prepared import Prepared

    written: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return Prepared(**{**written, "folder": str(folder)})


def load(folder: Path, split: str) -> "datasets.Dataset":
    """The rows of one of `SPLITS`, mapped from disk."""
    import datasets

    return datasets.Dataset.from_file(str(folder / split / "data.arrow"))


def _fingerprint(config: Dataset, sources: Sequence[Source], identity: Sequence[str]) -> str:
    parts = [
        [[source.name, source.identity, source.limit, source.weight] for source in sources],
        {name: value for name, value in asdict(config).items() if name not in NOT_DECIDING},
        list(identity),
        [Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8") for module in DECIDING],
        list(versions()),
    ]
    return hashlib.sha256(json.dumps(parts, default=str, sort_keys=True).encode()).hexdigest()[:32]


def versions() -> Iterator[str]:
    """Versions of the libraries that decide what is written."""
    for name in ("transformers", "tokenizers", "datasets", "trl"):
        yield importlib.metadata.version(name)
