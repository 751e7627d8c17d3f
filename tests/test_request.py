"""Requests survive being written and read."""

import enum
import json
import typing
from pathlib import Path

import pytest

from composing import GROUPS, Compose, options
from sft_exp import rundir, schema
from sft_exp.request import Request, flatten, from_plain, read, to_plain

EVERY = [f"{group}={option}" for group in GROUPS if group != "sweep" for option in options(group)]


def round_trip(asked: Request, folder: Path) -> Request:
    rundir.write_json(folder / "request.json", asked)
    return read(folder / "request.json")


def test_every_shipped_option(compose: Compose, here: Path) -> None:
    for override in [item for item in EVERY if item.startswith("experiment=")]:
        asked = compose(override)
        assert round_trip(asked, here) == asked


def test_every_kind_of_value(compose: Compose, here: Path) -> None:
    asked = compose(
        "model=tiny", "hw.devices=[1,2]", "hw.capability=8.9", "hw.env={A: '1'}", "model.dtype=bfloat16",
        "train.extra={adam_beta1: 0.8, nested: {a: [1, null, x]}}", "train.sample_prompts=[é, '训练']",
        "train.warmup=10", "dataset.limit=5", "dataset.config='0625'", "tracking=none", "resume=/x",
        "zero.extra={a: {b: true}}", "dataset.path=[a.jsonl, b.csv]",
        "dataset.mixture={a: {path: [x.jsonl], weight: 3}, b: {path: ORG/NAME, kind: hub}}",
    )  # fmt: skip
    asked.folder, asked.parent_run_id = "/runs/one", "abc"
    back = round_trip(asked, here)
    assert back == asked
    assert back.experiment.model.dtype is schema.Dtype.bfloat16
    assert back.experiment.dataset.config == "0625"
    assert back.experiment.dataset.path == ["a.jsonl", "b.csv"]
    assert back.experiment.dataset.mixture == {
        "a": schema.Part(path=["x.jsonl"], weight=3.0),
        "b": schema.Part(path="ORG/NAME", kind=schema.DatasetKind.hub),
    }
    assert isinstance(back.experiment.train.warmup, float)


def test_types_survive(compose: Compose, here: Path) -> None:
    """Equality does not tell an enum from its value or a dataclass from a dictionary."""
    back = round_trip(compose("experiment=demo"), here)
    for group, hint in typing.get_type_hints(schema.Experiment).items():
        if isinstance(hint, type) and not issubclass(hint, str | enum.Enum):
            assert type(getattr(back.experiment, group)) is hint
    assert type(back.experiment.model.shape) is schema.Shape
    assert type(back.experiment.hw.launcher) is schema.Launcher


def test_an_unknown_key_is_an_error() -> None:
    plain = to_plain(Request(experiment=schema.Experiment()))
    plain["experiment"]["train"]["lrr"] = 1
    with pytest.raises((KeyError, TypeError), match="lrr"):
        from_plain(Request, plain)


def test_an_unknown_choice_is_an_error() -> None:
    plain = to_plain(schema.Experiment())
    plain["train"]["precision"] = "bf17"
    with pytest.raises(ValueError, match="bf17"):
        from_plain(schema.Experiment, plain)


def test_plain_is_json() -> None:
    plain = to_plain(schema.Experiment())
    assert json.loads(json.dumps(plain)) == plain
    assert plain["hw"]["device"] == "auto"


def test_flatten() -> None:
    tree = {"a": {"b": 1, "c": {"d": [1, 2]}}, "e": {}, "f": None}
    assert flatten(tree) == {"a.b": 1, "a.c.d": [1, 2], "e": {}, "f": None}
