"""Rules about the data that need no row to be read."""

import dataclasses
import math
import re
from collections.abc import Iterator
from pathlib import Path

from sft_exp import checkpoint, files, messages, mixture, normalize
from sft_exp.errors import ConfigError
from sft_exp.schema import Dataset, DatasetKind, Experiment, Part


def problems(experiment: Experiment) -> Iterator[str]:
    """One sentence for each reason why the rows cannot be read as asked."""
    dataset = experiment.dataset
    parts = mixture.parts(dataset)
    yield from _mixture(dataset)
    for name, part in parts.items():
        yield from _part(mixture.option(name), part, streaming=dataset.streaming)
    if dataset.streaming and all(part.kind is DatasetKind.files for part in parts.values()):
        yield "dataset.streaming=true is for datasets on the hub: leave it out, files are read row by row anyway."
    if dataset.streaming and any(part.weight for part in parts.values()):
        yield "dataset.streaming=true reads parts one after the other: leave their weights out, or set it to false."
    yield from _names(dataset)
    yield from _numbers(dataset)
    longest = experiment.model.shape.max_position_embeddings
    if longest and dataset.max_length > longest:
        yield (
            f"dataset.max_length={dataset.max_length} is more than the model's {longest} positions: use {longest} or "
            "less."
        )


def _mixture(dataset: Dataset) -> Iterator[str]:
    if not dataset.mixture:
        return
    # Fields of a single source would be ignored beside a mixture.
    for key in ("path", "config", "revision", "limit"):
        if getattr(dataset, key) is not None:
            yield (
                f"dataset.{key}={getattr(dataset, key)} and dataset.mixture are both set: set dataset.{key}=null and "
                f"give each part its own, as in dataset.mixture.NAME.{key}."
            )
    weights = [part.weight for part in dataset.mixture.values()]
    if None in weights and set(weights) != {None}:
        without = ", ".join(name for name, part in dataset.mixture.items() if part.weight is None)
        yield f"dataset.mixture has parts without a weight ({without}): give every part one, or none."
    for name, part in dataset.mixture.items():
        if not re.fullmatch(r"\w[\w.-]*", name):
            yield f"dataset.mixture has a part named '{name}': use letters, digits, '.', '-' and '_'."
        if part.weight is not None and not 0 < part.weight < math.inf:
            yield f"dataset.mixture.{name}.weight={part.weight} must be above 0; leave out a part that is not used."


def _part(option: str, part: Part, *, streaming: bool) -> Iterator[str]:
    if part.limit is not None and part.limit < 1:
        yield f"{option}.limit={part.limit} must be at least 1."
    if part.kind is DatasetKind.hub:
        yield from _hub(option, part, streaming=streaming)
        return
    yield from _of_the_hub(option, part)
    if part.path is None:
        several = ", or name several sources in dataset.mixture" if option == "dataset" else ""
        yield f"the dataset has no path: set {option}.path to a file, folder or glob{several}."
    elif not _is_path(part.path):
        yield f"{option}.path={part.path} is no path: give a file, folder or glob as text, or a list of these."
    else:
        try:
            files.find_files(part.path, f"{option}.path")
        except ConfigError as error:
            yield from error.problems


def _of_the_hub(option: str, part: Part) -> Iterator[str]:
    """Fields that files would ignore."""
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if field.name in ("config", "split", "revision") and value != field.default:
            yield (
                f"{option}.{field.name}={value} is for datasets on the hub and {option}.kind is files: leave it out, "
                f"or set {option}.kind=hub."
            )


def _is_path(path: object) -> bool:
    items = path if isinstance(path, list) else [path]
    return bool(items) and all(isinstance(item, str) and item for item in items)


def _hub(option: str, part: Part, *, streaming: bool) -> Iterator[str]:
    if part.path is None:
        yield f"the dataset has no path: set {option}.path to an id such as ORG/NAME."
    elif not isinstance(part.path, str) or not part.path:
        yield f"{option}.path={part.path} is no dataset id: give one such as ORG/NAME; several make a dataset.mixture."
    elif part.path.startswith("sample:"):
        yield f"{option}.path={part.path} is a shipped file and {option}.kind is hub: use {option}.kind=files."
    elif not checkpoint.HUB_ID.fullmatch(part.path) and not Path(part.path).expanduser().exists():
        yield (
            f"{option}.path={part.path} is no folder and cannot be an id of the hub: give ORG/NAME, or use "
            f"{option}.kind=files for files on disk."
        )
    if not part.split.strip():
        yield f"{option}.split is empty: name a split such as train."
    if streaming and not re.fullmatch(r"[\w.-]+", part.split):
        yield f"{option}.split={part.split} cannot be streamed: name a whole split and set {option}.limit."


def _names(dataset: Dataset) -> Iterator[str]:
    for name, role in dataset.role_map.items():
        if role not in messages.ROLES:
            yield f"dataset.role_map.{name}={role} is not a role: use one of {', '.join(messages.ROLES)}."
    known = sorted(normalize.COLUMNS | messages.TURN_KEYS)
    for old, new in dataset.columns.items():
        if new not in known:
            yield f"dataset.columns.{old}={new} is not a known column: use one of {', '.join(known)}."


def _numbers(dataset: Dataset) -> Iterator[str]:
    if dataset.max_length < 2:
        yield f"dataset.max_length={dataset.max_length} must be at least 2."
    for key in ("eval_fraction", "test_fraction", "max_bad_fraction"):
        value = getattr(dataset, key)
        if not 0 <= value <= 1 or (key != "max_bad_fraction" and value == 1):
            yield f"dataset.{key}={value} must be a share between 0 and 1."
    held_out = dataset.eval_fraction + dataset.test_fraction
    if held_out >= 1 > max(dataset.eval_fraction, dataset.test_fraction):
        yield (
            f"dataset.eval_fraction={dataset.eval_fraction} and dataset.test_fraction={dataset.test_fraction} leave "
            "nothing to train on: lower one of them."
        )
    if dataset.num_proc < 1:
        yield f"dataset.num_proc={dataset.num_proc} must be at least 1."
