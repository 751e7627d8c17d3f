"""MLflow on a real sqlite store: one run per run, nothing twice, nothing lost."""

import json
import math
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from composing import NO_CARDS, Compose
from sft_exp import metrics, rundir, tracking, tracking_store
from sft_exp.request import Request
from sft_exp.resolve import resolve
from sft_exp.rundir import RunDir
from sft_exp.schema import Tracking, TrackingKind
from sft_exp.tracking import Tracker


def request(compose: Compose, *overrides: str) -> Request:
    asked = compose("model=tiny", "hw=cpu", *overrides)
    asked.experiment = resolve(asked.experiment, NO_CARDS)
    return asked


def row(step: int, **values: float | str) -> dict[str, Any]:
    return {"step": step, "time_ms": 1_700_000_000_000 + step, **values}


def history(run: RunDir, key: str) -> list[tuple[int, float]]:
    """(step, value) of a metric as the store has it."""
    record = rundir.read_json(run.tracking)
    client, _ = tracking_store.client(Tracking(uri=record["uri"]))
    return [(point.step, point.value) for point in client.get_metric_history(record["run_id"], key)]


def test_params_are_flat(compose: Compose) -> None:
    found = tracking.params(request(compose, "adapter=lora", "train.extra={a: {b: 1}}"), {"batch.accumulation": 2})
    assert found["option.adapter"] == "lora"
    assert found["adapter.r"] == "16"
    assert found["train.extra.a.b"] == "1"
    assert found["batch.accumulation"] == "2"
    assert found["model.name"] == "tiny"
    assert found["train.precision"] == "fp32"
    assert all(isinstance(value, str) and value not in ("", "null", "{}") for value in found.values())
    assert not [key for key in found if key.startswith(("tracking", "outputs", "resume", "model.shape"))]


def test_params_of_different_runs_have_the_same_names(compose: Compose) -> None:
    one, two = (set(tracking.params(request(compose, item), {})) for item in ("train.seed=1", "train.seed=2"))
    assert one == two


def test_a_closed_port_is_named_quickly() -> None:
    """MLflow itself would try for minutes."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        port = taken.getsockname()[1]
        started = time.monotonic()
        sentence = tracking_store.unreachable(Tracking(uri=f"http://127.0.0.1:{port}"))
    assert time.monotonic() - started < 4
    assert f"http://127.0.0.1:{port} does not answer" in (sentence or "")


def test_a_server_that_listens_is_reachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert tracking_store.unreachable(Tracking(uri=uri)) is None
    assert tracking_store.unreachable(Tracking(uri=uri, kind=TrackingKind.none)) is None
    assert tracking_store.unreachable(Tracking(uri="sqlite:////nowhere/a.db")) is None


def test_read_rows_leaves_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert metrics.read_rows(path) == ([], 0)
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    rows, offset = metrics.read_rows(path)
    assert [item["step"] for item in rows] == [1, 2]
    with path.open("a") as file:
        file.write('ep": 3}\n')
    rows, _ = metrics.read_rows(path, offset)
    assert rows == [{"step": 3}]


def test_without_a_tracker_nothing_happens(compose: Compose, here: Path) -> None:
    asked = request(compose, "tracking=none")
    run = rundir.create(asked)
    tracker = Tracker(asked, run)
    tracker.open({}, {}, [])
    tracker.send([row(1, loss=1.0)])
    tracker.close("FINISHED", {})
    assert tracker.error is None
    assert not run.tracking.exists()
    assert not (here / "outputs" / "mlflow.db").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("limit", "sent"), [(100, {"rows"}), (16, set())], ids=["small row log", "large row log"])
def test_a_whole_run(compose: Compose, here: Path, monkeypatch: pytest.MonkeyPatch, limit: int, sent: set[str]) -> None:
    monkeypatch.setattr(tracking, "ROWS_LIMIT", limit)
    asked = request(compose, "tracking.tags={team: us}")
    run = rundir.create(asked)
    rundir.write_json(run.result, {"steps": 2})
    run.rows.mkdir()
    (run.rows / "rank0.bin").write_bytes(bytes(16))
    tracker = Tracker(asked, run)
    tracker.open({"git.commit": "abc"}, {"batch.accumulation": 2}, [run.config])
    tracker.send([row(1, **{"train/loss": 2.0}), row(2, **{"train/loss": "nan", "train/grad_norm": "inf"})])
    tracker.send([row(2, **{"eval/loss": 1.5})])
    tracker.close("FINISHED", {"outcome": "finished"})
    assert tracker.error is None
    assert tracker.run_id is not None
    client, _ = tracking_store.client(asked.experiment.tracking)
    stored = client.get_run(tracker.run_id)
    assert (stored.info.status, stored.info.run_name) == ("FINISHED", run.name)
    assert {"git.commit": "abc", "team": "us", "outcome": "finished"}.items() <= stored.data.tags.items()
    assert stored.data.params == tracking.params(asked, {"batch.accumulation": 2})
    losses = history(run, "train/loss")
    assert losses[0] == (1, 2.0)
    assert losses[1][0] == 2
    assert math.isnan(losses[1][1])
    assert history(run, "train/grad_norm")[0][1] > 1e300
    assert history(run, "eval/loss") == [(2, 1.5)]
    assert {file.path for file in client.list_artifacts(tracker.run_id)} == {"config.json", "result.json"} | sent
    assert (here / "outputs" / "mlartifacts").is_dir()
    assert not (here / "mlruns").exists()


KILLED = """
import json, sys, time
from pathlib import Path
from sft_exp import request, rundir
from sft_exp.tracking import Tracker
run = rundir.RunDir(Path(sys.argv[1]))
tracker = Tracker(request.read(run.request), run)
tracker.open({}, {}, [])
tracker.send([json.loads(line) for line in run.metrics.read_text().splitlines()])
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_killed_sender_repeats_nothing(compose: Compose) -> None:
    """What was sent is known for each metric: a step whose evaluation had not been sent yet is sent only once."""
    asked = request(compose)
    run = rundir.create(asked)
    rows = [row(step, **{"train/loss": float(step)}) for step in (5, 10)]
    run.metrics.write_text("".join(json.dumps(item) + "\n" for item in rows))
    sender = subprocess.Popen([sys.executable, "-c", KILLED, str(run.path)], env=dict(os.environ))
    deadline = time.monotonic() + 120
    while not run.tracking.exists() or rundir.read_json(run.tracking)["sent"].get("train/loss") != 10:
        assert time.monotonic() < deadline
        assert sender.poll() is None
        time.sleep(0.05)
    sender.kill()
    sender.wait()
    first = rundir.read_json(run.tracking)["run_id"]

    tracker = Tracker(asked, run)
    tracker.open({"command": "resumed"}, {}, [])
    # Step 10 comes again from the checkpoint at step 5, later and another value; the store drops only equal points.
    repeated = {**row(10, **{"train/loss": 10.5}), "time_ms": 1_800_000_000_000}
    tracker.send([rows[0], repeated, row(10, **{"eval/loss": 0.5}), row(15, **{"train/loss": 15.0})])
    tracker.close("FINISHED", {})
    assert tracker.error is None
    assert tracker.run_id == first
    assert history(run, "train/loss") == [(5, 5.0), (10, 10.0), (15, 15.0)]
    assert history(run, "eval/loss") == [(10, 0.5)]
    client, _ = tracking_store.client(asked.experiment.tracking)
    assert client.get_run(first).data.tags["resume.1.command"] == "resumed"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_resumed_run_says_how_it_ended_the_last_time(compose: Compose) -> None:
    """What was stopped and then finished is finished, and shows which values were changed when."""
    first = request(compose, "train.max_steps=4")
    run = rundir.create(first)
    stopped = ("KILLED", {"outcome": "stopped", "reason": "stopped by SIGINT"})
    starts = (
        (first, "a", stopped),
        (request(compose, "train.max_steps=8"), "b", stopped),
        (request(compose, "train.max_steps=8", "train.early_stopping=3"), "a", ("FINISHED", {"outcome": "finished"})),
    )
    for asked, commit, end in starts:
        tracker = Tracker(asked, run)
        tracker.open({"git.commit": commit, "team": "us"}, {}, [])
        tracker.close(*end)
        assert tracker.error is None
    client, _ = tracking_store.client(first.experiment.tracking)
    stored = client.get_run(rundir.read_json(run.tracking)["run_id"])
    assert stored.info.status == "FINISHED"
    tags = stored.data.tags
    assert tags["outcome"] == "finished"
    assert "reason" not in tags
    assert stored.data.params["train.max_steps"] == "4"
    assert {key: value for key, value in tags.items() if key.startswith("resume.")} == {
        "resume.1.git.commit": "b",
        "resume.1.train.max_steps": "8",
        "resume.2.train.max_steps": "8",
        "resume.2.train.early_stopping": "3",
    }


@pytest.mark.slow
def test_two_processes_make_one_store(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/new/mlflow.db"
    code = f"from sft_exp import schema, tracking_store; print(tracking_store.client(schema.Tracking(uri={uri!r}))[1])"
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=180) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert len({output.strip() for output, _ in outputs}) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_store_that_fails_does_not_end_the_run(compose: Compose, here: Path) -> None:
    (here / "broken.db").write_text("this is no database, and long enough to be taken for one" * 100)
    asked = request(compose, f"tracking.uri=sqlite:///{here}/broken.db")
    tracker = Tracker(asked, rundir.create(asked))
    tracker.open({}, {}, [])
    tracker.send([row(1, loss=1.0)])
    tracker.close("FINISHED", {})
    assert "not a database" in (tracker.error or "")
