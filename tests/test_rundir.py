"""Paths of a run and records that are whole or absent."""

import dataclasses
import json
import math
import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import pytest

from composing import Compose
from sft_exp import request, rundir
from sft_exp.errors import ConfigError
from sft_exp.rundir import RunDir


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("my run", "my-run"),
        ("../../etc/passwd", "etc-passwd"),
        ("..", "run"),
        ("/", "run"),
        ("", "run"),
        (".hidden", "hidden"),
        ("a\nb\0c", "a-b-c"),
        ("训练", "run"),
        ("q'uo\"te", "q-uo-te"),
        ("x" * 300, "x" * 80),
        ("lr=1e-4,seed=2", "lr-1e-4-seed-2"),
    ],
)
def test_slug(text: str, expected: str) -> None:
    assert rundir.slug(text) == expected


def test_slug_stays_in_its_folder(tmp_path: Path) -> None:
    draw = random.Random(3)
    for _ in range(500):
        text = "".join(draw.choice("./\\~ \n\0a-_é$*") for _ in range(draw.randint(0, 120)))
        assert (tmp_path / rundir.slug(text)).resolve().parent == tmp_path.resolve()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("model=tiny", "tiny-full-z0-"),
        ("model=qwen0.5b adapter=lora zero=2", "qwen0.5b-lora-z2-"),
        ("model.path=ORG/NAME", "NAME-full-z0-"),
        ("model.path=/models/mine/", "mine-full-z0-"),
        ("name=../first", "first-"),
    ],
)
def test_run_name(compose: Compose, typed: str, expected: str) -> None:
    experiment = compose(*typed.split()).experiment
    experiment.model.name = None if "path" in typed else experiment.model.name
    name = rundir.run_name(experiment)
    assert name.startswith(expected)
    assert len(name) == len(expected) + 6


def test_names_differ_under_equal_seeds(compose: Compose) -> None:
    experiment = compose("model=tiny").experiment
    names = set()
    for _ in range(50):
        random.seed(42)
        names.add(rundir.run_name(experiment))
    assert len(names) == 50


def test_create(compose: Compose, here: Path) -> None:
    asked = compose("model=tiny", f"outputs={here}/outputs")
    run = rundir.create(asked)
    assert run.path.parent.parent == here / "outputs"
    assert request.read(run.request) == asked
    assert rundir.read_json(run.config) == request.to_plain(asked.experiment)
    assert all(folder.is_dir() for folder in (run.logs, run.faults, run.pids))
    assert run.name.startswith("tiny-full-z0-")
    assert rundir.create(asked).path != run.path


def test_create_where_the_caller_wants(compose: Compose, here: Path) -> None:
    asked = compose("model=tiny")
    asked.folder = str(here / "sweep" / "0-tiny")
    assert rundir.create(asked).path == here / "sweep" / "0-tiny"
    with pytest.raises(ConfigError, match="cannot make the run folder"):
        rundir.create(asked)


def test_create_in_a_file(compose: Compose, here: Path) -> None:
    (here / "file").write_text("")
    with pytest.raises(ConfigError, match="set outputs=FOLDER"):
        rundir.create(compose("model=tiny", f"outputs={here}/file/outputs"))


def test_every_path_is_inside(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    paths = [getattr(run, name) for name, value in vars(RunDir).items() if isinstance(value, property)]
    found = [path for path in paths if isinstance(path, Path)]
    assert len(found) == len(set(found)) > 10
    assert all(path.parent == run.path for path in found)
    assert [field.name for field in dataclasses.fields(run)] == ["path"]


def write_for_ever(path: Path) -> None:
    number = 0
    while True:
        rundir.write_json(path, {"number": number, "long": "x" * 200_000})
        number += 1


def test_a_reader_never_sees_half_a_record(tmp_path: Path) -> None:
    """Not even when the writer is killed."""
    path = tmp_path / "record.json"
    writer = multiprocessing.get_context("spawn").Process(target=write_for_ever, args=(path,))
    writer.start()
    try:
        seen: set[int] = set()
        deadline = time.monotonic() + 20
        while len(seen) < 20 and time.monotonic() < deadline:
            if path.exists():
                seen.add(int(rundir.read_json(path)["number"]))
    finally:
        writer.kill()
        writer.join()
    assert len(seen) == 20
    assert len(rundir.read_json(path)["long"]) == 200_000


def test_no_temporary_file_stays(tmp_path: Path) -> None:
    rundir.write_text(tmp_path / "a.txt", "é")
    rundir.write_text(tmp_path / "a.txt", "ü")
    assert [(file.name, file.read_text(encoding="utf-8")) for file in tmp_path.iterdir()] == [("a.txt", "ü")]


def test_numbers_that_json_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    rundir.write_json(path, {"a": math.nan, "b": [math.inf, {"c": -math.inf}], "d": 1.5})
    strict = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert strict == {"a": "nan", "b": ["inf", {"c": "-inf"}], "d": 1.5}
    assert math.isnan(float(strict["a"]))


def checkpoint(run: RunDir, step: Any, *, whole: bool = True) -> Path:
    folder = run.checkpoints / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text("")
    if whole:
        (folder / "trainer_state.json").write_text("{}")
    return folder


def test_newest_checkpoint(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert run.newest_checkpoint() is None
    checkpoint(run, 5)
    ten = checkpoint(run, 10)
    checkpoint(run, 20, whole=False)  # killed while it was written
    assert run.newest_checkpoint() == ten
    assert RunDir(run.path / "logs" / "..").newest_checkpoint() == ten
