"""MLflow, owned by the parent of a run: ranks write metrics to a file, a thread here passes them on.

So there is one MLflow run per training run however many ranks there are, a slow or dead server costs no training step,
and the run gets its right end status even if every rank was killed.
"""

import json
import queue
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sft_exp import rundir, tracking_answers
from sft_exp.request import Request, flatten, to_plain
from sft_exp.rundir import RunDir
from sft_exp.schema import TrackingKind
from sft_exp.tracking_store import client

if TYPE_CHECKING:
    from mlflow import MlflowClient

DRAIN_S = 30.0
"""Seconds the thread may take at the end to send what is left."""
ROWS_LIMIT = 20 * 2**20
"""Bytes of the row log above which it stays in the run folder: it grows by 16 for each trained conversation."""
SUMMARY = (
    "steps", "loss_first", "loss_last", "eval_loss", "eval_loss_best", "test_loss", "grad_norm", "tokens_per_second",
    "tokens_seen", "mfu", "peak_memory_gib", "planned_memory_gib", "memory_error", "memory_error_percent",
    "skipped_steps", "parameters", "trainable_parameters", "new_rows_moved_min",
)  # fmt: skip
"""Fields of `result.json` that are metrics at the end."""
ENDING = {"outcome", "reason"}
"""Tags on how a run ended; it has none while it is on."""
LEFT_OUT = (
    "hw.env", "tracking", "model.shape", "outputs", "resume", "name", "train.sample_prompts", "eval.limits", "sweep",
)  # fmt: skip
"""Configuration that is recorded in the run folder and would only clutter the comparison of runs."""


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
        # Last step sent for each metric, and of the table of answers: what a resumed run repeats is not sent twice.
        self.sent: dict[str, int] = {}
        self.resumes = 0
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
            item = self._queue.get()
            while isinstance(item, list):
                # One transaction for all that has come meanwhile: jobs of a sweep wait for each other at the store.
                rows, item = self._waiting(item)
                self._log(made, rows)
                item = item or self._queue.get()
            assert item is not None
            self._finish(made, *item)
        except Exception as error:  # tracking must never end a training run; the reason is shown at the end
            self.error = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"

    def _waiting(self, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], tuple[str, dict[str, Any]] | None]:
        """Rows with those that wait behind them, and the end if it waits there."""
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return rows, None
            if not isinstance(item, list):
                return rows, item
            rows = rows + item

    def _open(self, tags: dict[str, Any], derived: dict[str, Any], artifacts: list[Path]) -> "MlflowClient":
        made, experiment_id = client(self.tracking)
        text = {key: str(value)[:5000] for key, value in {**self.tracking.tags, **tags}.items()}
        earlier = rundir.read_json(self.run.tracking) if self.run.tracking.exists() else None
        if earlier and earlier["uri"] == self.tracking.uri:
            self._reopen(made, earlier, text, params(self.request, derived))
        else:
            self._create(made, experiment_id, text, params(self.request, derived))
        for file in artifacts:
            if file.exists():
                made.log_artifact(self.run_id, str(file))
        return made

    @property
    def _title(self) -> str:
        return self.request.title or self.run.name

    def _create(self, made: "MlflowClient", experiment_id: str, tags: dict[str, str], flat: dict[str, str]) -> None:
        from mlflow.entities import Param

        if self.request.parent_run_id:
            tags["mlflow.parentRunId"] = self.request.parent_run_id
        self.run_id = str(made.create_run(experiment_id, run_name=self._title, tags=tags).info.run_id)
        self._save()
        pairs = [Param(key, value) for key, value in flat.items()]
        for start in range(0, len(pairs), 100):
            made.log_batch(self.run_id, params=pairs[start : start + 100])

    def _reopen(
        self, made: "MlflowClient", earlier: dict[str, Any], tags: dict[str, str], flat: dict[str, str]
    ) -> None:
        """Go on in the recorded run: how it ended is no longer true, and what is new stands in `resume.N.*` tags.

        MLflow refuses to change a parameter, so a new value is a tag too.
        """
        from mlflow.entities import RunTag

        self.run_id, self.sent = str(earlier["run_id"]), dict(earlier["sent"])
        self.resumes = int(earlier.get("resumes", 0)) + 1
        self._save()
        stored = made.get_run(self.run_id).data
        made.update_run(self.run_id, status="RUNNING")
        for key in ENDING & stored.tags.keys():
            made.delete_tag(self.run_id, key)
        known = {**stored.tags, **stored.params}
        new = [
            RunTag(f"resume.{self.resumes}.{key}", value[:5000])
            for key, value in {**tags, **flat}.items()
            if known.get(key) != value
        ]
        for start in range(0, len(new), 100):
            made.log_batch(self.run_id, tags=new[start : start + 100])

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
        if steps := [int(row["step"]) for row in rows if "probe/ended" in row]:
            after = self.sent.get(tracking_answers.ARTIFACT, -1)
            tracking_answers.send(made, self.run_id, self.run, after=after, up_to=max(steps))
            self.sent[tracking_answers.ARTIFACT] = max(steps)
        self._save()

    def _finish(self, made: "MlflowClient", status: str, tags: dict[str, Any]) -> None:
        from mlflow.entities import RunTag

        assert self.run_id
        run = self.run
        made.log_batch(self.run_id, tags=[RunTag(key, str(value)[:5000]) for key, value in tags.items()])
        self._summary(made)
        for file in (run.result, run.behaviour, run.samples, run.metrics, run.profile, run.trace):
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
        rundir.write_json(
            self.run.tracking,
            {"uri": self.tracking.uri, "run_id": self.run_id, "sent": self.sent, "resumes": self.resumes},
        )
