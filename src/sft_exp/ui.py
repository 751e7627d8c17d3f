"""`ui`: the MLflow UI on 127.0.0.1, on the store that runs are tracked in."""

import os
import socket
import sys
from pathlib import Path

from sft_exp import tracking_store
from sft_exp.errors import ConfigError
from sft_exp.machine import Machine
from sft_exp.request import Request
from sft_exp.resolve import resolve

FIRST_PORT = 5000


def serve(request: Request) -> None:
    """Become the MLflow server; it ends with Ctrl-C."""
    settings = resolve(request.experiment, Machine()).tracking
    uri = settings.uri or ""
    if uri.startswith("http"):
        print(f"runs are tracked by the server {uri}: open it in a browser.")
        return
    if not uri:
        raise ConfigError("tracking=none keeps no store to look at: use tracking=mlflow.")
    # The lock and the check for a new database are the same as in a run.
    tracking_store.client(settings)
    port = _free_port()
    print(f"MLflow UI: http://127.0.0.1:{port}   (store {uri}, end with Ctrl-C)", flush=True)
    env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    arguments = ["server", "--backend-store-uri", uri, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    if uri.startswith("sqlite:///"):
        artifacts = (Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts").as_uri()
        arguments += ["--default-artifact-root", artifacts]
    os.execve(sys.executable, [sys.executable, "-m", "mlflow", *arguments], env)


def _free_port() -> int:
    """First port from 5000 on that nobody listens on."""
    for port in range(FIRST_PORT, FIRST_PORT + 100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise ConfigError(f"ports {FIRST_PORT} to {FIRST_PORT + 99} are all taken: end an old MLflow server.")
