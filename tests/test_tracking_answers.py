"""Answers to probes in a real MLflow store: one table that grows, nothing twice."""

import json
from pathlib import Path
from typing import Any

import pytest

from composing import NO_CARDS, Compose
from sft_exp import rundir, tracking, tracking_answers, tracking_store
from sft_exp.probes import table
from sft_exp.resolve import resolve
from sft_exp.schema import Tracking
from sft_exp.tracking import Tracker


def answer(step: int, text: str) -> tuple[Any, ...]:
    return (step, "probe", "01-en-question", "Why?", "", text, True, 3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_table_grows_with_the_steps(compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "DRAIN_S", 300)
    asked = compose("model=tiny", "hw=cpu")
    asked.experiment = resolve(asked.experiment, NO_CARDS)
    run = rundir.create(asked)
    run.probes.mkdir()
    rundir.write_json(run.behaviour, {"headline": "healthy"})
    for texts in (["one", "two"], ["two", "three"]):  # the second tracker is that of a resumed run
        tracker = Tracker(asked, run)
        tracker.open({}, {}, [])
        table.forget_after(run, 0)
        for step, text in enumerate(texts, len(texts) if "three" in texts else 0):
            table.add(run, [answer(step, text)])
            tracker.send([{"step": step, "time_ms": 1, "probe/ended": 1.0}])
        tracker.close("FINISHED", {"behaviour": "healthy"})
        assert tracker.error is None
    record = rundir.read_json(run.tracking)
    client, _ = tracking_store.client(Tracking(uri=record["uri"]))
    file = Path(client.download_artifacts(record["run_id"], tracking_answers.ARTIFACT, str(tmp_path)))
    found = json.loads(file.read_text(encoding="utf-8"))
    assert tuple(found["columns"]) == table.COLUMNS
    assert [(row[0], row[5]) for row in found["data"]] == [(0, "one"), (1, "two"), (2, "two"), (3, "three")]
    stored = client.get_run(record["run_id"]).data.tags
    assert stored["behaviour"] == "healthy" and tracking_answers.ARTIFACT in stored["mlflow.loggedArtifacts"]
    assert {file.path for file in client.list_artifacts(record["run_id"])} >= {"behaviour.json", "probes"}
