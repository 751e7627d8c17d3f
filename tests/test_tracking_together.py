"""Jobs of a sweep that open and fill one fresh store at the same time."""

import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest

from composing import Compose
from sft_exp import rundir
from sft_exp.request import Request
from sft_exp.tracking import Tracker

JOBS, POINTS = 8, 200


def job(request: Request, barrier: Any, errors: Any) -> None:
    run = rundir.create(request)
    tracker = Tracker(request, run)
    barrier.wait()
    tracker.open({}, {}, [])
    for step in range(1, POINTS + 1):
        tracker.send([{"step": step, "time_ms": step, "train/loss": 1 / step}])
        time.sleep(0.05)  # as steps do, so that the jobs' transactions meet
    tracker.close("FINISHED", {})
    errors.put(tracker.error)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_eight_jobs_fill_a_fresh_store(compose: Compose, here: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{here}/mlflow.db"
    context = multiprocessing.get_context("fork")  # this process has imported MLflow and opened no store
    barrier, errors = context.Barrier(JOBS), context.Queue()
    jobs = [
        context.Process(target=job, args=(compose("model=tiny", "hw=cpu", f"tracking.uri={uri}"), barrier, errors))
        for _ in range(JOBS)
    ]
    for each in jobs:
        each.start()
    assert [errors.get(timeout=300) for _ in jobs] == [None] * JOBS
    for each in jobs:
        each.join()
    client = MlflowClient(uri)
    [experiment] = [each for each in client.search_experiments() if each.name == "sft_exp"]
    runs = client.search_runs([experiment.experiment_id])
    assert [run.info.status for run in runs] == ["FINISHED"] * JOBS
    for run in runs:
        history = client.get_metric_history(run.info.run_id, "train/loss")
        assert sorted(point.step for point in history) == list(range(1, POINTS + 1)), json.dumps(run.data.tags)
