"""Where rows come from: files, a dataset on the hub, or a mixture of several."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from sft_exp import hub, mixture, reader, textfile
from sft_exp.digests import Digests
from sft_exp.errors import ConfigError
from sft_exp.files import find_files
from sft_exp.rows import Row
from sft_exp.schema import Dataset, DatasetKind, Part


@dataclass(slots=True)
class Source:
    """Rows to be read, with what identifies their content."""

    name: str
    """Name of the part in a mixture, else of the file or of the dataset on the hub."""
    identity: list[Any]
    """Equal if and only if rows and places are."""
    read: Callable[[], Iterator[Row]]
    encodings: dict[str, str] = field(default_factory=dict)
    """Text encoding of each file that is not plain UTF-8."""
    files: list[str] = field(default_factory=list)
    """What places call the files, in their order; none of a dataset on the hub."""
    weight: float | None = None
    limit: int | None = None
    """Rows to be taken at most; `read` yields all."""


def open_sources(config: Dataset, cache: Path) -> list[Source]:
    """Find what the dataset names; nothing is read but what identifies it. Digests of files are kept in `cache`."""
    digests = Digests(cache / "digests.json")
    sources = []
    for name, part in mixture.parts(config).items():
        is_hub = part.kind is DatasetKind.hub
        source = _hub(name, part, streaming=config.streaming) if is_hub else _files(name, part, digests)
        source.name = name or source.name
        source.weight, source.limit = part.weight, part.limit
        sources.append(source)
    digests.write()
    return sources


def _files(part_name: str, part: Part, digests: Digests) -> Source:
    files = find_files(part.path, f"{mixture.option(part_name)}.path")
    base = os.path.commonpath([file.absolute().parent for file in files])
    names = {file: mixture.place(part_name, os.path.relpath(file, base)) for file in files}
    encodings = {}
    identity = []
    for file, name in names.items():
        try:
            identity.append([name, digests.of(file)])
            if (encoding := reader.encoding(file)) and encoding != "utf-8":
                encodings[name] = encoding
        except textfile.UNREADABLE as error:
            raise ConfigError(f"{file} cannot be read ({error}): copy or download it again.") from error

    def read() -> Iterator[Row]:
        return chain.from_iterable(reader.read_rows(file, name) for file, name in names.items())

    return Source(_title(part.path, files), identity, read, encodings, list(names.values()))


def _title(path: str | list[str], files: list[Path]) -> str:
    if len(files) == 1:
        return files[0].name
    return path if isinstance(path, str) else f"{files[0].name} and {len(files) - 1} more"


def _hub(part_name: str, part: Part, *, streaming: bool) -> Source:
    rows = hub.open_rows(
        part, mixture.option(part_name), place=mixture.place(part_name, part.path), streaming=streaming
    )
    return Source(part.path, rows.identity, rows.read)
