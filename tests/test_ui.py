"""The MLflow UI from the command line: it answers, and a signal ends all of it."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sft_exp import descendants, ui
from sft_exp.errors import RunFailed


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_quietly(tmp_path: Path, number: signal.Signals) -> None:
    argv = [sys.executable, "-m", "sft_exp", "ui", f"outputs={tmp_path}"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout
        assert process.stderr
        port = int(process.stdout.readline().partition("127.0.0.1:")[2].split()[0])
        deadline = time.monotonic() + 120
        with socket.socket() as probe:
            while probe.connect_ex(("127.0.0.1", port)) != 0:
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.2)
        started = [found.pid for found in descendants.below(process.pid)]
        assert started
        process.send_signal(number)
        assert process.wait(timeout=30) == 128 + number
        said = process.stdout.read() + process.stderr.read()
    assert "Aborted" not in said
    assert "Traceback" not in said
    assert "sft_exp:" not in said
    assert not set(started) & {found.pid for found in descendants.living()}


def test_a_server_that_ends_by_itself_is_a_fault() -> None:
    with pytest.raises(RunFailed, match="exit code 3"):
        ui._run([sys.executable, "-c", "raise SystemExit(3)"], {})
