"""The rows as ranks read them: order, test rows, and rows that are read while training."""

import json
from pathlib import Path

import pytest
from datasets import config

from preparing import pairs, write
from sft_exp import rowlog
from test_run import rows, run_folder
from test_run import train as run_train
from training import logged, train

pytestmark = pytest.mark.slow


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder laid out like a dataset on the hub, with one bad row after the first thousand."""
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "hf")
    folder = tmp_path / "repository"
    folder.mkdir()
    file = write(folder / "train.jsonl", pairs(1100))
    file.write_text(file.read_text() + json.dumps({"question": "?", "answer": ""}) + "\n")
    return folder


def test_rows_in_the_order_of_the_file(tmp_path: Path) -> None:
    run = train(tmp_path, "dataset.shuffle=false", "train.max_steps=2")
    assert rowlog.read(run.rows)["row"].tolist() == list(range(16))


def test_test_rows_are_measured_once_at_the_end(tmp_path: Path) -> None:
    run = train(tmp_path, "dataset.test_fraction=0.3", "dataset.eval_fraction=0.2", "train.max_steps=2")
    data, result = (json.loads(file.read_text()) for file in (run.data, run.result))
    assert data["test_rows"] > 0 and data["train_rows"] + data["eval_rows"] + data["test_rows"] == 22
    assert logged(run, "test/loss") == [result["test_loss"]] and result["test_loss"] > 0
    assert len(logged(run, "eval/loss")) == 1 and result["eval_loss"] != result["test_loss"]


def test_a_stream_trains_what_stored_rows_train(tmp_path: Path, repository: Path) -> None:
    overrides = [
        "dataset=hub", f"dataset.path={repository}", "dataset.shuffle=false", "dataset.eval_fraction=0.01",
        "train.max_steps=3", "dataset.max_bad_fraction=0.01",
    ]  # fmt: skip
    (tmp_path / "a").mkdir()
    stored, streamed = train(tmp_path / "a", *overrides), train(tmp_path, *overrides, "dataset.streaming=true")
    assert logged(streamed) == pytest.approx(logged(stored), abs=1e-6)
    report = json.loads(streamed.data.read_text())
    assert report["streamed"] and report["rows"] == 1000 and report["eval_rows"] > 0
    assert json.loads(streamed.stream.read_text())["dropped"] == {}, "no row was bad as far as it was read"


def test_a_stream_goes_on_after_its_end_and_counts_bad_rows(tmp_path: Path, repository: Path) -> None:
    run = train(
        tmp_path, "dataset=hub", f"dataset.path={repository}", "dataset.streaming=true", "dataset.eval_fraction=0",
        "train.max_steps=10", "train.global_batch=128", "train.micro_batch=128",
    )  # fmt: skip
    assert len(logged(run)) == 10  # 1,100 rows are 8.6 batches
    counts = json.loads(run.stream.read_text())
    assert counts["dropped"] == {"empty_content": 1} and counts["examples"]["empty_content"][0].endswith(
        ":1101 answer is empty"
    )


def test_a_stream_on_two_ranks_is_resumed(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    overrides = [
        "model=tiny", "hw=cpu2", "tracking=none", "dataset=hub", f"dataset.path={repository}", "dataset.streaming=true",
        "dataset.eval_fraction=0", "train.global_batch=8", "train.logging_steps=1", "train.save_steps=2",
        "train.scheduler=constant",
    ]  # fmt: skip
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    run_train(tmp_path / "whole", *overrides, "train.max_steps=4")
    run_train(tmp_path / "parts", *overrides, "train.max_steps=2")
    run_train(tmp_path / "parts", f"resume={run_folder(tmp_path / 'parts')}", "train.max_steps=4")
    whole, parts = (rows(run_folder(tmp_path / name)) for name in ("whole", "parts"))
    assert [row["step"] for row in parts] == [1, 2, 3, 4]
    assert [row["train/loss"] for row in parts] == pytest.approx([row["train/loss"] for row in whole], abs=1e-5)
