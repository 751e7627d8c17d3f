"""Where rows come from: files, or a data set on the hub."""

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from sft_exp import textfile
from sft_exp.errors import ConfigError
from sft_exp.reader import read_rows
from sft_exp.rows import Place, Row, find_files
from sft_exp.schema import Dataset, DatasetKind
from sft_exp.tables import without_nulls


@dataclass(slots=True)
class Source:
    """Rows to be read, with what identifies their content."""

    name: str
    identity: list[Any]
    read: Callable[[], Iterator[Row]]
    encodings: dict[str, str]
    """Text encoding of each file that is not plain UTF-8."""
    weight: float | None = None
    limit: int | None = None


def open_source(config: Dataset) -> Source:
    """Find what `dataset.path` names; nothing is read but what identifies it."""
    return _hub(config) if config.kind is DatasetKind.hub else _files(config)


def open_sources(config: Dataset) -> list[Source]:
    return [open_source(config)]


def _files(config: Dataset) -> Source:
    files = find_files(str(config.path))
    base = os.path.commonpath([file.parent for file in files])
    names = {file: os.path.relpath(file, base) for file in files}
    encodings = {}
    identity = []
    for file, name in names.items():
        try:
            with file.open("rb") as stream:
                identity.append([name, hashlib.file_digest(stream, "sha256").hexdigest()])
            if not name.endswith(".parquet") and (encoding := textfile.encoding(file)) != "utf-8":
                encodings[name] = encoding
        except textfile.UNREADABLE as error:
            raise ConfigError(f"dataset.path={file} cannot be read ({error}): copy or download it again.") from error

    def read() -> Iterator[Row]:
        return chain.from_iterable(read_rows(file, name) for file, name in names.items())

    return Source(str(config.path) if len(files) > 1 else files[0].name, identity, read, encodings)


def _hub(config: Dataset) -> Source:
    import datasets

    path = str(config.path)
    try:
        table = datasets.load_dataset(path, config.config, split=config.split, revision=config.revision)
    except Exception as error:  # unknown id, no network, gated, wrong split: the library has a class for each
        cause = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"dataset.path={path} cannot be loaded from the hub ({type(error).__name__}: {cause}): check "
            "dataset.path, .config, .split and .revision, or download it and use dataset.kind=files."
        ) from error

    def read() -> Iterator[Row]:
        return (Row(Place(path, at), without_nulls(row)) for at, row in enumerate(table, 1))

    return Source(path, [path, config.config, config.split, config.revision, table._fingerprint], read, {})
