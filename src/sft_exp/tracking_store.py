"""The MLflow store: whether it answers, a client for it, and one process at a time where it is made."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sft_exp.schema import Tracking, TrackingKind

if TYPE_CHECKING:
    from mlflow import MlflowClient


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


def absent(tracking: Tracking) -> str | None:
    """One sentence if the store is a sqlite file that is not there: reading would make an empty one."""
    file = (tracking.uri or "").removeprefix("sqlite:///")
    if file == tracking.uri or Path(file).is_file():
        return None
    return f"there is no tracking store {file}: give the store of the runs, such as --tracking-uri sqlite:///PATH."


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
