"""What a resumed run refuses, takes over and forgets."""

import dataclasses
import json
from pathlib import Path

import pytest

from composing import NO_CARDS, Compose
from sft_exp import request, resume, rundir
from sft_exp.errors import ConfigError
from sft_exp.request import Request
from sft_exp.resolve import resolve
from sft_exp.rundir import RunDir


@pytest.fixture
def run(compose: Compose) -> RunDir:
    """A run of ten steps that was killed after step 7, with a checkpoint at 5."""
    asked = compose("model=tiny", "hw=cpu", "train.max_steps=10", "train.save_steps=5")
    asked.experiment = resolve(asked.experiment, NO_CARDS)
    run = rundir.create(asked)
    (run.checkpoints / "checkpoint-5").mkdir(parents=True)
    (run.checkpoints / "checkpoint-5" / "trainer_state.json").write_text("{}")
    rows = [json.dumps({"step": step, "time_ms": 0, "train/loss": 1.0}) for step in range(1, 8)]
    run.metrics.write_text("\n".join([*rows, '{"step": 8, "tra']))
    (run.faults / "rank0.json").write_text("{}")
    (run.pids / "1").touch()
    run.data.write_text("{}")
    return run


def again(compose: Compose, run: RunDir, *overrides: str) -> Request:
    """The request, as composing defaults and a few overrides gives it."""
    return compose(f"resume={run.path}", *overrides)


def refused(compose: Compose, run: RunDir, *overrides: str) -> str:
    before = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
    with pytest.raises(ConfigError) as caught:
        resume.reopen(again(compose, run, *overrides), NO_CARDS)
    assert {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()} == before
    return str(caught.value)


def test_it_takes_everything_from_its_folder(compose: Compose, run: RunDir) -> None:
    first = request.read(run.request)
    asked = again(compose, run)
    found, folder = resume.reopen(asked, NO_CARDS)
    assert folder == run
    assert found.experiment == dataclasses.replace(first.experiment, resume=str(run.path))
    assert found.overrides == first.overrides
    assert found.argv == asked.argv


def test_what_may_change_changes(compose: Compose, run: RunDir) -> None:
    found, _ = resume.reopen(again(compose, run, "train.max_steps=20", "train.save_steps=10"), NO_CARDS)
    assert (found.experiment.train.max_steps, found.experiment.train.save_steps) == (20, 10)
    assert request.read(run.request) == found
    assert rundir.read_json(run.config)["train"]["max_steps"] == 20


def test_what_came_after_the_checkpoint_is_forgotten(compose: Compose, run: RunDir) -> None:
    rundir.write_json(run.result, {"steps": 7, "total_steps": 10})
    resume.reopen(again(compose, run), NO_CARDS)
    assert [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()] == [1, 2, 3, 4, 5]
    assert list(run.faults.iterdir()) == list(run.pids.iterdir()) == []
    assert not run.data.exists()  # its presence would let the ranks begin before the rows are there
    assert not run.result.exists()


@pytest.mark.parametrize(
    "override",
    ["train.learning_rate=1", "model=qwen0.5b", "dataset.limit=5", "train.seed=1", "zero=2", "hw=cpu2", "outputs=x"],
)
def test_what_may_not_change(compose: Compose, run: RunDir, override: str) -> None:
    sentence = refused(compose, run, "train.max_steps=20", override)
    assert override.partition("=")[0] in sentence
    assert "train.max_steps" in sentence.partition("what may change")[2]


def test_no_run_folder(compose: Compose, run: RunDir) -> None:
    for folder in ("/not/there", str(run.path.parent)):
        with pytest.raises(ConfigError, match=f"resume={folder} is no run folder"):
            resume.reopen(compose(f"resume={folder}"), NO_CARDS)


def test_no_checkpoint(compose: Compose, run: RunDir) -> None:
    (run.checkpoints / "checkpoint-5" / "trainer_state.json").unlink()
    assert "has no checkpoint" in refused(compose, run)


def test_finished(compose: Compose, run: RunDir) -> None:
    rundir.write_json(run.result, {"steps": 10, "total_steps": 10})
    assert "has finished its 10 steps: add train.max_steps=N" in refused(compose, run)
    found, _ = resume.reopen(again(compose, run, "train.max_steps=20"), NO_CARDS)
    assert found.experiment.train.max_steps == 20


def test_new_values_are_checked(compose: Compose, run: RunDir) -> None:
    assert "train.save_steps=30 is never reached" in refused(compose, run, "train.save_steps=30")


def records(run: RunDir) -> dict[str, bytes]:
    return {name: (run.path / name).read_bytes() for name in resume.RECORDS if (run.path / name).exists()}


@pytest.mark.parametrize("kills", [1, 2, 3])
def test_a_resume_that_is_killed_before_it_trains_loses_nothing(compose: Compose, run: RunDir, kills: int) -> None:
    """However often: a finished run stays finished when its extension comes to nothing in the end."""
    rundir.write_json(run.result, {"steps": 10, "total_steps": 10})
    rundir.write_json(run.status, {"state": "finished"})
    before = records(run)
    for _ in range(kills):  # the parent is gone at once, and nobody calls `restore`
        resume.reopen(again(compose, run, "train.max_steps=20"), NO_CARDS)
        rundir.write_json(run.status, {"state": "running"})
    with pytest.raises(ConfigError, match="has finished its 10 steps"):
        resume.reopen(again(compose, run), NO_CARDS)
    assert records(run) == before
    assert not list(run.path.glob(".before*"))


def test_a_resume_that_is_killed_in_training_is_not_taken_back(compose: Compose, run: RunDir) -> None:
    resume.reopen(again(compose, run, "train.max_steps=20"), NO_CARDS)
    run.data.write_text("{}")  # the data was accepted
    with run.metrics.open("a") as file:
        file.write('{"step": 6}\n{"step": 7}\n{"step": 8}\n')
    (run.checkpoints / "checkpoint-7").mkdir()
    (run.checkpoints / "checkpoint-7" / "trainer_state.json").write_text("{}")
    found, _ = resume.reopen(again(compose, run), NO_CARDS)
    assert found.experiment.train.max_steps == 20
    assert [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()] == [1, 2, 3, 4, 5, 6, 7]


def test_a_kill_while_records_are_copied_or_put_back(compose: Compose, run: RunDir) -> None:
    rundir.write_json(run.result, {"steps": 7, "total_steps": 10})
    before = records(run)
    (run.path / ".before.unfinished").mkdir()
    (run.path / ".before.unfinished" / "request.json").write_text("half")
    resume.reopen(again(compose, run), NO_CARDS)
    for name in ("request.json", "metrics.jsonl", "result.json"):  # put back, but not all
        (run.path / name).write_bytes((run.path / ".before" / name).read_bytes())
    resume._recover(run)
    assert records(run) == before


def test_a_refused_resume_gives_back_what_it_changed(compose: Compose, run: RunDir) -> None:
    before = records(run)
    resume.reopen(again(compose, run, "train.max_steps=20"), NO_CARDS)
    assert records(run) != before
    assert resume.restore(run, trained=False)
    assert records(run) == before


def test_a_folder_given_from_where_one_is(compose: Compose, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.path.parent)
    found, folder = resume.reopen(compose(f"resume={run.path.name}"), NO_CARDS)
    assert folder.path == run.path
    assert Path(found.experiment.outputs).is_absolute()
