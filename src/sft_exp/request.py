"""What a user asked for: the typed experiment and where its values came from."""

import dataclasses
import enum
import json
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sft_exp import schema

T = TypeVar("T")


@dataclass(kw_only=True, slots=True)
class Request:
    """One composed experiment with its provenance."""

    experiment: schema.Experiment
    overrides: list[str] = field(default_factory=list)
    """Overrides as typed."""
    choices: dict[str, str] = field(default_factory=dict)
    """Chosen option of each config group."""
    sources: list[str] = field(default_factory=list)
    """Folders in which Hydra looked for options."""
    argv: list[str] = field(default_factory=list)
    """Command line after `python -m sft_exp`."""
    folder: str | None = None
    """Run folder, if the caller has chosen it (jobs of a sweep)."""
    parent_run_id: str | None = None
    """MLflow run of the sweep that this run belongs to."""
    title: str | None = None
    """Name of the MLflow run, if the caller has chosen it (jobs of a sweep: what sets them apart)."""
    port: int | None = None
    """Port at which the ranks meet, if the caller has chosen it: no two jobs of a sweep get the same."""


def to_plain(value: Any) -> Any:
    """Dataclasses and enums as what JSON knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, list | tuple) else value


def from_plain(cls: type[T], data: dict[str, Any]) -> T:
    """The inverse of `to_plain` for a dataclass; an unknown key is an error, since a record must not be misread."""
    hints = typing.get_type_hints(cls)
    return cls(**{key: _typed(hints[key], value) for key, value in data.items()})


def _typed(hint: Any, value: Any) -> Any:
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is list and value is not None:
        return [_typed(typing.get_args(hint)[0], item) for item in value]
    if typing.get_origin(hint) is dict:
        return {key: _typed(typing.get_args(hint)[1], item) for key, item in value.items()}
    if value is not None and isinstance(hint, type):
        if dataclasses.is_dataclass(hint):
            return from_plain(hint, value)
        if issubclass(hint, enum.Enum):
            return hint(value)
    return value


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as dotted keys; lists and empty dictionaries stay values."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def read(path: Path) -> Request:
    """Request from the file written by `rundir`."""
    return from_plain(Request, json.loads(path.read_text(encoding="utf-8")))
