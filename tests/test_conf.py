"""What ships in `conf` composes, has the schema's shape and means what it meant before.

Renew the golden files after an intended change and read the diff: UPDATE_GOLDEN=1 pytest tests/test_conf.py
"""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from composing import GROUPS, Compose, options
from sft_exp import cli, extra, schema
from sft_exp.request import to_plain
from sft_exp.schedules import SCHEDULERS

GOLDEN = Path(__file__).parent / "golden"
FIELDS = {field.name for field in dataclasses.fields(schema.Experiment)}
CHOICES = [(group, option) for group in GROUPS if group not in ("experiment", "sweep") for option in options(group)]


def golden(name: str, value: Any) -> None:
    file = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    assert value == json.loads(file.read_text(encoding="utf-8"))


def sweep(monkeypatch: pytest.MonkeyPatch, *argv: str) -> list[schema.Experiment]:
    arguments = cli.read_arguments(list(argv))[1]
    monkeypatch.setattr(sys, "argv", ["sft_exp", *arguments])
    requests, folder = cli.compose(list(argv))
    assert folder is not None
    return [request.experiment for request in requests]


def test_groups_are_the_fields_of_the_schema() -> None:
    groups = {name for name in FIELDS if dataclasses.is_dataclass(getattr(schema.Experiment(), name))}
    assert set(GROUPS) == groups | {"experiment", "sweep"}


@pytest.mark.parametrize(("group", "option"), CHOICES)
def test_option(compose: Compose, group: str, option: str) -> None:
    golden(f"{group}/{option}", to_plain(compose(f"{group}={option}").experiment)[group])


@pytest.mark.parametrize("option", options("experiment"))
def test_experiment(compose: Compose, option: str) -> None:
    golden(f"experiment/{option}", to_plain(compose(f"experiment={option}").experiment))


@pytest.mark.parametrize("option", options("sweep"))
def test_sweep(here: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    """A sweep differs in what it sweeps and in nothing else."""
    jobs = [to_plain(experiment) for experiment in sweep(monkeypatch, f"sweep={option}", "model=tiny")]
    differing = {key for key in FIELDS for job in jobs if job[key] != jobs[0][key]}
    golden(f"sweep/{option}", [{key: job[key] for key in sorted(differing)} for job in jobs])


def test_no_golden_file_is_left_over() -> None:
    shipped = {f"{group}/{option}" for group in GROUPS for option in options(group)}
    assert {str(file.relative_to(GOLDEN).with_suffix("")) for file in GOLDEN.rglob("*.json")} == shipped


def test_the_helper_composes_as_the_command_line_does(compose: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["experiment=r1_full_4090x4", "zero=3", "train.seed=7", "hw.devices=[0,1,2,3]", "model.dtype=float32"]
    monkeypatch.setattr(sys, "argv", ["sft_exp", *cli.read_arguments(argv)[1]])
    [request], folder = cli.compose(argv)
    assert folder is None
    assert request.experiment == compose(*argv).experiment
    assert request.choices["zero"] == "3"
    assert request.argv == argv


def test_a_number_in_quotes_stays_text(compose: Compose) -> None:
    """YAML 1.1 reads 0625 as octal 405."""
    assert compose("dataset=infinity_instruct").experiment.dataset.config == "0625"


def test_stages_are_typed_without_quotes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = sweep(monkeypatch, "-m", "zero=0,2,3,2_offload", "model=tiny")
    assert [job.zero.stage for job in jobs] == [0, 2, 3, 2]
    assert [job.zero.offload_optimizer for job in jobs] == [False, False, False, True]


def test_order_of_sources(compose: Compose) -> None:
    """Command line beats experiment beats group option."""
    assert compose("experiment=first_sft").experiment.hw.name == "v100"
    assert compose("experiment=first_sft", "hw=cpu").experiment.hw.name == "cpu"
    assert compose("experiment=first_sft").experiment.train.global_batch == 4
    assert compose("experiment=first_sft", "train.global_batch=8").experiment.train.global_batch == 8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_schedules_are_those_of_transformers() -> None:
    from transformers import SchedulerType

    assert set(SCHEDULERS) == {member.value for member in SchedulerType}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_extra_knows_the_fields_of_sft_config() -> None:
    from trl import SFTConfig

    assert extra.fields().keys() == {field.name for field in dataclasses.fields(SFTConfig) if field.init}
    # What a run sets itself exists there, so that a rename in TRL is noticed.
    assert extra.fields().keys() >= extra.OWNED.keys()
