"""`ui`: the MLflow UI on 127.0.0.1, on the store that runs are tracked in."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from sft_exp import descendants, launch, tracking_store
from sft_exp.errors import ConfigError, RunFailed, RunStopped
from sft_exp.machine import Machine
from sft_exp.request import Request
from sft_exp.resolve import resolve
from sft_exp.rules.tracking import uri_problem

FIRST_PORT = 5000
END_GRACE_S = 10.0
"""Seconds the server has to end after a signal before it is killed."""


def serve(request: Request) -> None:
    """Run the MLflow server until a signal ends it, with exit code 128 + signal. Raises RunFailed if it ends itself."""
    settings = resolve(request.experiment, Machine()).tracking
    uri = settings.uri or ""
    if uri.startswith("http"):
        print(f"runs are tracked by the server {uri}: open it in a browser.")
        return
    if not uri:
        raise ConfigError("tracking=none keeps no store to look at: use tracking=mlflow.")
    if sentence := uri_problem(uri):
        raise ConfigError(sentence)
    # The lock and the check for a new database are the same as in a run.
    tracking_store.client(settings)
    port = _free_port()
    print(f"MLflow UI: http://127.0.0.1:{port}   (store {uri}, end with Ctrl-C)", flush=True)
    env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    arguments = ["server", "--backend-store-uri", uri, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    if uri.startswith("sqlite:///"):
        artifacts = (Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts").as_uri()
        arguments += ["--default-artifact-root", artifacts]
    _run([sys.executable, "-m", "mlflow", *arguments], env)


def _run(argv: list[str], env: dict[str, str]) -> NoReturn:
    """Wait for a server in a session of its own, so that a Ctrl-C reaches it and its workers from here, in order."""
    with launch.stop_on_signal():
        server = subprocess.Popen(argv, env=env, start_new_session=True, preexec_fn=descendants.die_with_parent)
        try:
            code = server.wait()
        except RunStopped as stopped:
            _end(server)
            sys.exit(stopped.exit_code)
    raise RunFailed(f"the MLflow server ended with exit code {code}: its last lines above say why.")


def _end(server: "subprocess.Popen[bytes]") -> None:
    own = descendants.below(server.pid)
    server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(END_GRACE_S)
    descendants.terminate([server.pid, *(process.pid for process in own)], signal.SIGKILL)
    server.wait()


def _free_port() -> int:
    """First port from 5000 on that nobody listens on."""
    for port in range(FIRST_PORT, FIRST_PORT + 100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise ConfigError(f"ports {FIRST_PORT} to {FIRST_PORT + 99} are all taken: end an old MLflow server.")
