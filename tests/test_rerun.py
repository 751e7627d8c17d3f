"""`python -m sft_exp rerun`: the same run again, and every change since named."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from comparing import run_folder
from sft_exp import rerun, rundir
from sft_exp.cli import start
from sft_exp.compare import facts
from sft_exp.errors import ConfigError, RunFailed
from sft_exp.rundir import RunDir


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of three steps on a file of its own."""
    folder = tmp_path_factory.mktemp("rerun")
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{n} + 1", "completion": f"{n + 1}."}) + "\n" for n in range(40)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFT_EXP_CACHE", str(folder / "cache"))
        argv = ["model=tiny", f"dataset.path={data}", "hw=cpu", "tracking=none", f"outputs={folder / 'outputs'}"]
        start([*argv, "train.max_steps=3", "train.logging_steps=1", "train.global_batch=4"])
        yield only(folder)


def only(folder: Path) -> Path:
    (request,) = (folder / "outputs").glob("*/*/request.json")
    return request.parent


@pytest.mark.slow
def test_the_same_bit_for_bit(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start(["rerun", str(trained)])
    out = capsys.readouterr().out
    assert "changed  nothing" in out and "all 4 logged losses are equal bit for bit" in out
    (other,) = [path for path in trained.parent.iterdir() if path != trained]
    assert rundir.read_json(other / "config.json")["tracking"]["tags"] == {"rerun_of": trained.name}
    shutil.rmtree(other)


@pytest.mark.slow
def test_a_changed_row_is_refused_before_anything_is_trained(trained: Path) -> None:
    data = Path(rundir.read_json(trained / "config.json")["dataset"]["path"])
    whole = data.read_text()
    data.write_text(whole.replace("17.", "18."))
    try:
        with pytest.raises(ConfigError, match=r"the data of .* has changed since .*--anyway"):
            start(["rerun", str(trained)])
        assert only(trained.parents[2]) == trained
    finally:
        data.write_text(whole)


@pytest.mark.slow
def test_each_change_is_named(trained: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    copy = tmp_path / "outputs" / "day" / trained.name
    shutil.copytree(trained, copy)
    record = rundir.read_json(copy / "record.json")
    record["versions"]["trl"], record["git"]["commit"] = "0.1", "0123abc"
    rundir.write_json(copy / "record.json", record)
    rundir.write_text(copy / "git.diff", "+ a change that was not committed\n")
    rows = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    rows[1]["train/loss"] *= 1.001
    (copy / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sentence = "not the same: 1 of 4 logged losses differ, first train/loss at step 2"
    with pytest.raises(RunFailed, match=sentence) as caught:
        start(["rerun", str(copy)])
    out = capsys.readouterr().out
    for line in ("version of trl: 0.1 -> ", "git commit: 0123abc -> ", "uncommitted changes: "):
        assert f"changed  {line}" in out and line in str(caught.value)
    assert "data fingerprint" not in out
    for path in trained.parent.iterdir():
        if path != trained:
            shutil.rmtree(path)


def test_losses_are_held_against_the_noise_of_the_device(tmp_path: Path) -> None:
    one, two = run_folder(tmp_path / "a-x", eval_loss=2.0), run_folder(tmp_path / "b-x", eval_loss=2.001)
    assert rerun.verdict(one, one, exact=True) == ("The same: all 4 logged losses are equal bit for bit.", True)
    assert not rerun.verdict(one, two, exact=True)[1]
    sentence, same = rerun.verdict(one, two, exact=False)
    assert same and "4 of 4 logged losses differ, first train/loss at step 1" in sentence
    assert not rerun.verdict(one, run_folder(tmp_path / "c-x", eval_loss=2.1), exact=False)[1]


def test_not_a_number_equals_itself(tmp_path: Path) -> None:
    one = run_folder(tmp_path / "a-x")
    text = one.run.metrics.read_text().replace("2.5", '"nan"')
    one.run.metrics.write_text(text)
    read = facts.read(one.run.path)
    assert rerun.verdict(read, read, exact=True)[1]
    assert not rerun.verdict(one, read, exact=False)[1]


@pytest.mark.parametrize("argv", [[], ["nowhere"], ["a", "--now"]])
def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        start(["rerun", *argv])


def test_a_run_without_losses_cannot_be_compared(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "a-x", state="failed").run
    RunDir(run.path).metrics.unlink()
    with pytest.raises(ConfigError, match=r"has logged no loss to compare with \(failed\)"):
        start(["rerun", str(run.path)])
