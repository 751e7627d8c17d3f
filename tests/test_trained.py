"""Which run `chat` and `merge` take, and one sentence for what is none."""

import json
from pathlib import Path

import pytest

from composing import compose
from sft_exp import rundir, trained
from sft_exp.errors import ConfigError
from sft_exp.rundir import RunDir


def made(folder: Path, *, result: bool = True, model: bool = True) -> RunDir:
    """A run folder as far as it is looked at."""
    asked = compose("model=tiny", "hw=cpu")
    asked.folder = str(folder)
    run = rundir.create(asked)
    if result:
        rundir.write_json(run.result, {"steps": 3})
    if model:
        run.model.mkdir()
        (run.model / "config.json").write_text("{}")
    return run


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        trained.find(text)
    [problem] = refused.value.problems
    return problem


@pytest.fixture
def run(here: Path) -> RunDir:
    return made(here / "outputs" / "2026-01-02" / "030405_000006-first-abc123")


@pytest.mark.parametrize(
    "text",
    [
        "outputs/2026-01-02/030405_000006-first-abc123",
        "outputs/2026-01-02/030405_000006-first-abc123/model/",
        "030405_000006-first-abc123",
        "first-abc123",
    ],
)
def test_a_run_is_found_by_folder_and_by_name(run: RunDir, text: str) -> None:
    assert trained.find(text) == run


def test_a_job_of_a_sweep_is_found_by_its_name(here: Path) -> None:
    job = made(here / "outputs" / "2026-01-02" / "030405_000006-sweep" / "0-tiny-full-z0-abc123")
    assert trained.find("tiny-full-z0-abc123") == job
    assert "holds 1 runs: give one of them, such as" in refusal(str(job.path.parent))


def test_a_name_inside_a_run_folder_is_not_that_run(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.path)
    assert trained.find(".") == run
    assert "nowhere is no run folder" in refusal("nowhere")


def test_what_is_no_run(run: RunDir, here: Path) -> None:
    (here / "empty").mkdir()
    newest = "give one such as outputs/2026-01-02/030405_000006-first-abc123"
    assert refusal("nowhere") == f"nowhere is no run folder, and no run below outputs/ has this name: {newest}."
    assert refusal("empty") == f"empty is no run folder (it has no request.json): {newest}."


def test_what_is_no_run_where_there_is_none(here: Path) -> None:
    assert refusal("x").endswith("has this name: give a run folder, or train first.")


def test_two_runs_of_one_name(run: RunDir, here: Path) -> None:
    made(here / "outputs" / "2026-01-03" / "030405_000006-first-abc123")
    assert "names 2 runs: give the folder of one, such as outputs/2026-01-03/" in refusal("first-abc123")


@pytest.mark.parametrize(("state", "words"), [("failed", "(failed): train again"), ("running", "(running): wait")])
def test_a_run_that_is_not_finished(here: Path, state: str, words: str) -> None:
    run = made(here / "a-run", result=False)
    rundir.write_json(run.status, {"state": state})
    assert words in refusal("a-run")
    checkpoint = run.checkpoints / "checkpoint-2"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text("{}")
    assert refusal("a-run").endswith(f"continue it with resume={run.path}.")


def test_a_run_without_a_model(here: Path) -> None:
    made(here / "a-run", model=False)
    assert "has no model: model/ in it does not hold config.json or adapter_config.json" in refusal("a-run")


def test_a_run_of_another_version(run: RunDir) -> None:
    asked = json.loads(run.request.read_text())
    run.request.write_text(json.dumps({**asked, "of_tomorrow": 1}))
    assert "use the version that made it" in refusal(str(run.path))
