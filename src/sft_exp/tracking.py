"""MLflow, owned by the parent of a run: ranks write metrics to a file, a thread here passes them on.

So there is one MLflow run per training run however many ranks there are, a slow or dead server costs no training step,
and the run gets its right end status even if every rank was killed.
"""

import contextlib
import fcntl
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sft_exp import rundir
from sft_exp.request import Request, flatten, to_plain
from sft_exp.rundir import RunDir
from sft_exp.schema import Tracking, TrackingKind

if TYPE_CHECKING:
    from mlflow import MlflowClient

DRAIN_S = 30.0
"""Seconds the thread may take at the end to send what is left."""
ROWS_LIMIT = 20 * 2**20
"""Bytes of the row log above which it stays in the run folder: it grows by 16 for each trained conversation."""
SUMMARY = (
    "steps", "loss_first", "loss_last", "eval_loss", "eval_loss_best", "test_loss", "grad_norm", "tokens_per_second",
    "tokens_seen", "mfu", "peak_memory_gib", "planned_memory_gib", "memory_error", "skipped_steps", "parameters",
    "trainable_parameters",
)  # fmt: skip
"""Fields of `result.json` that are metrics at the end."""
LEFT_OUT = ("hw.env", "tracking", "model.shape", "outputs", "resume", "name", "train.sample_prompts")
"""Configuration that is recorded in the run folder and would only clutter the comparison of runs."""


def unreachable(tracking: Tracking, timeout_s: float = 3.0) -> str | None:
    """One sentence if the tracking server does not answer: MLflow itself would try for four minutes."""
    parts = urlsplit(tracking.uri or "")
    if tracking.kind is TrackingKind.none or parts.scheme not in ("http", "https") or parts.hostname is None:
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), timeout_s).close()
    except OSError as error:
        address = f"{parts.scheme}://{parts.hostname}:{port}"
        return (
            f"the tracking server {address} does not answer ({error}): start it, or use tracking.uri=null or "
            "tracking=none."
        )
    return None


@contextlib.contextmanager
def _one_at_a_time(uri: str) -> Iterator[None]:
    """Lock beside a sqlite store: processes that create one together break it for good."""
    if not uri.startswith("sqlite:///"):
        yield
        return
    store = Path(uri.removeprefix("sqlite:///"))
    store.parent.mkdir(parents=True, exist_ok=True)
    with store.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def client(tracking: Tracking) -> "tuple[MlflowClient, str]":
    """Client and experiment id; makes store and experiment if they are not there."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    import logging

    for name in ("alembic", "mlflow.store.db.utils"):  # a page of migrations for each new database
        logging.getLogger(name).setLevel(logging.WARNING)
    from mlflow import MlflowClient

    uri = tracking.uri or ""
    with _one_at_a_time(uri):
        made = MlflowClient(tracking_uri=uri)
        found = made.get_experiment_by_name(tracking.experiment)
        if found is not None:
            return made, str(found.experiment_id)
        artifacts = None
        if uri.startswith("sqlite:///"):
            artifacts = (Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts").as_uri()
        # Without the kind the UI opens on its pages for chat applications.
        tags = {"mlflow.experimentKind": "custom_model_development"}
        return made, str(made.create_experiment(tracking.experiment, artifact_location=artifacts, tags=tags))


def params(request: Request, derived: dict[str, Any]) -> dict[str, str]:
    """Flat parameters under stable dotted names: chosen options, every value that is set, what follows from it."""
    experiment = to_plain(request.experiment)
    flat = {f"option.{group}": request.choices[group] for group in experiment if group in request.choices}
    for key, value in {**flatten(experiment), **derived}.items():
        if value not in (None, [], {}, "") and not key.startswith(LEFT_OUT):
            flat[key] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {key: value[:6000] for key, value in flat.items()}


class Tracker:
    """One MLflow run, fed through a queue by the parent's main loop."""

    def __init__(self, request: Request, run: RunDir) -> None:
        self.tracking = request.experiment.tracking
        self.request, self.run = request, run
        self.error: str | None = None
        self.run_id: str | None = None
        # Last step sent for each metric: what a resumed run repeats is not sent twice.
        self.sent: dict[str, int] = {}
        self._queue: queue.Queue[list[dict[str, Any]] | tuple[str, dict[str, Any]] | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def open(self, tags: dict[str, Any], derived: dict[str, Any], artifacts: list[Path]) -> None:
        """Start the thread, which opens the MLflow run (or the one that is resumed) and then sends."""
        if self.tracking.kind is TrackingKind.none:
            return
        self._thread = threading.Thread(target=self._work, args=(tags, derived, artifacts), daemon=True)
        self._thread.start()

    @property
    def opened(self) -> bool:
        """Whether an MLflow run was asked for."""
        return self._thread is not None

    def send(self, rows: list[dict[str, Any]]) -> None:
        """Hand over rows of `metrics.jsonl`."""
        if self._thread and rows:
            self._queue.put(rows)

    def close(self, status: str, tags: dict[str, Any]) -> None:
        """Send what is left and end the MLflow run as FINISHED, FAILED or KILLED."""
        if self._thread is None:
            return
        self._queue.put((status, tags))
        self._thread.join(DRAIN_S)
        if self._thread.is_alive():
            self.error = f"the tracking store did not take all metrics within {DRAIN_S:.0f} s"

    def _work(self, tags: dict[str, Any], derived: dict[str, Any], artifacts: list[Path]) -> None:
        try:
            made = self._open(tags, derived, artifacts)
            while isinstance(item := self._queue.get(), list):
                self._log(made, item)
            assert item is not None
            self._finish(made, *item)
        except Exception as error:  # tracking must never end a training run; the reason is shown at the end
            self.error = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"

    def _open(self, tags: dict[str, Any], derived: dict[str, Any], artifacts: list[Path]) -> "MlflowClient":
        from mlflow.entities import Param, RunTag

        made, experiment_id = client(self.tracking)
        text = {key: str(value)[:5000] for key, value in {**self.tracking.tags, **tags}.items()}
        resumed = rundir.read_json(self.run.tracking) if self.run.tracking.exists() else None
        if resumed and resumed["uri"] == self.tracking.uri:
            self.run_id, self.sent = str(resumed["run_id"]), dict(resumed["sent"])
            made.update_run(self.run_id, status="RUNNING")
        else:
            if self.request.parent_run_id:
                text["mlflow.parentRunId"] = self.request.parent_run_id
            self.run_id = made.create_run(experiment_id, run_name=self.run.name, tags=text).info.run_id
            pairs = [Param(key, value) for key, value in params(self.request, derived).items()]
            for start in range(0, len(pairs), 100):
                made.log_batch(self.run_id, params=pairs[start : start + 100])
        self._save()
        if resumed:
            made.log_batch(self.run_id, tags=[RunTag(f"resume.{key}", value) for key, value in text.items()])
        for file in artifacts:
            if file.exists():
                made.log_artifact(self.run_id, str(file))
        return made

    def _log(self, made: "MlflowClient", rows: list[dict[str, Any]]) -> None:
        from mlflow.entities import Metric

        assert self.run_id
        points = [
            Metric(key, float(value), int(row["time_ms"]), int(row["step"]))
            for row in rows
            for key, value in row.items()
            if key not in ("step", "time_ms") and int(row["step"]) > self.sent.get(key, -1)
        ]
        for start in range(0, len(points), 1000):
            made.log_batch(self.run_id, metrics=points[start : start + 1000])
        self.sent |= {point.key: point.step for point in points}
        self._save()

    def _finish(self, made: "MlflowClient", status: str, tags: dict[str, Any]) -> None:
        from mlflow.entities import RunTag

        assert self.run_id
        made.log_batch(self.run_id, tags=[RunTag(key, str(value)[:5000]) for key, value in tags.items()])
        self._summary(made)
        for file in (self.run.result, self.run.samples, self.run.metrics):
            if file.exists():
                made.log_artifact(self.run_id, str(file))
        if 0 < sum(file.stat().st_size for file in self.run.rows.glob("*.bin")) < ROWS_LIMIT:
            made.log_artifacts(self.run_id, str(self.run.rows), self.run.rows.name)
        made.set_terminated(self.run_id, status)

    def _summary(self, made: "MlflowClient") -> None:
        """The closing table's numbers as `final/*`: one point each, so that a table of runs sorts by them."""
        from mlflow.entities import Metric

        if not self.run.result.exists():
            return
        assert self.run_id
        result, now = rundir.read_json(self.run.result), int(time.time() * 1000)
        points = [
            Metric(f"final/{key}", float(result[key]), now, int(result["steps"]))
            for key in SUMMARY
            if result.get(key) is not None
        ]
        made.log_batch(self.run_id, metrics=points)

    def _save(self) -> None:
        rundir.write_json(self.run.tracking, {"uri": self.tracking.uri, "run_id": self.run_id, "sent": self.sent})


def read_rows(path: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Whole lines of a metrics file from a byte offset on, and the offset after them."""
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows, offset
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                break
            rows.append(json.loads(line))
            offset += len(line)
    return rows, offset
