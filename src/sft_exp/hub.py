"""Rows of a dataset on the Hugging Face hub, stored by `datasets` or streamed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sft_exp.errors import ConfigError
from sft_exp.rows import Place, Row
from sft_exp.schema import Part
from sft_exp.tables import without_nulls

if TYPE_CHECKING:
    import datasets

_BATCH = 256  # rows


@dataclass(slots=True)
class HubRows:
    """One split of one configuration at one commit."""

    name: str
    """What messages call it, such as `dataset.path=ORG/NAME`."""
    place: str
    """What the places of rows call it."""
    identity: list[Any]
    table: "datasets.Dataset | datasets.IterableDataset"

    def read(self) -> Iterator[Row]:
        """Yield the rows; what goes wrong on the way, such as a lost connection, is a ConfigError."""
        number = 0
        try:
            for number, row in enumerate(_rows(self.table), 1):
                yield Row(Place(self.place, number), without_nulls(row))
        except Exception as error:  # streams fetch and decode here, each with errors of its own
            raise ConfigError(
                f"{self.name} cannot be read after row {number} ({_cause(error)}): start again, or download it and use "
                "kind=files."
            ) from error


def open_rows(part: Part, option: str, *, place: str, streaming: bool) -> HubRows:
    """Find the split that `option` sets; without streaming it is downloaded, unless it was before.

    These are the steps of `datasets.load_dataset`, which does not hand out the builder: it knows the commit that
    `revision` stands for, and so the content before any of it is fetched.
    """
    name = f"{option}.path={part.path}"
    try:
        builder = _builder(part)
        if streaming:
            table = builder.as_streaming_dataset(split=part.split)
        else:
            builder.download_and_prepare()
            table = builder.as_dataset(split=part.split)
    except Exception as error:  # unknown id, no network, gated, wrong split: the library has a class for each
        raise ConfigError(
            f"{name} cannot be loaded from the hub ({_cause(error)}): check {option}.path, .config, .split and "
            ".revision, or download it and use kind=files."
        ) from error
    identity = [place, part.path, builder.config_id, builder.hash, _origin(builder), part.split]
    return HubRows(name, place, identity, table)


def _rows(table: "datasets.Dataset | datasets.IterableDataset") -> Iterator[dict[str, Any]]:
    import datasets

    if isinstance(table, datasets.IterableDataset):
        yield from table
        return
    for columns in table.iter(_BATCH):  # eight times as fast as row by row
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


def _builder(part: Part) -> "datasets.DatasetBuilder":
    import datasets

    builder = datasets.load_dataset_builder(part.path, part.config, revision=part.revision)
    if builder.repo_id is None:
        # `datasets` names its cache of a folder by the configurations in its README, whatever the files hold by now.
        cache = f"{datasets.config.HF_DATASETS_CACHE}/{_origin(builder)}"
        builder = datasets.load_dataset_builder(part.path, part.config, cache_dir=cache)
    return builder


def _origin(builder: "datasets.DatasetBuilder") -> str:
    """Hash of the names of all data files and of the commit they are from; for those of a folder, of their times."""
    from datasets.fingerprint import Hasher

    return str(Hasher.hash(builder.config.data_files))


def _cause(error: BaseException) -> str:
    """Class and first line of what went wrong."""
    from datasets.exceptions import DatasetGenerationError

    if isinstance(error, DatasetGenerationError) and error.__cause__:  # it says only that something did
        error = error.__cause__
    return f"{type(error).__name__}: {(str(error) or 'no details').splitlines()[0]}"
