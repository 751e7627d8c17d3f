"""Breaks a rank in the middle of its training, in the way that belongs to its learning rate.

Python imports this file at its start if its folder is in PYTHONPATH; what breaks is not mocked.
"""

import _thread
import ctypes
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path


def _raise(kind: type[BaseException]) -> None:
    main = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(kind))


FAULTS: dict[float, Callable[[], object]] = {
    0.001: lambda: _raise(ZeroDivisionError),
    0.002: lambda: _raise(SystemExit),
    0.003: lambda: ctypes.string_at(0),
    0.004: lambda: os.kill(os.getpid(), signal.SIGKILL),
}
"""Learning rate -> what happens after the first step."""
LIMITED = 0.005
"""Learning rate of the rank that has too little memory (bytes), as under `ulimit -v`."""
LIMIT = 1_200_000_000


def _wait(folder: Path, fault: Callable[[], object]) -> None:
    while not (folder / "metrics.jsonl").exists():
        time.sleep(0.01)
    fault()


def _begin() -> None:
    if "sft_exp.worker" not in sys.orig_argv:
        return
    folder = Path(sys.orig_argv[-1])
    rate = json.loads((folder / "request.json").read_text())["experiment"]["train"]["learning_rate"]
    if rate == LIMITED:
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    if rate in FAULTS:
        _thread.start_new_thread(_wait, (folder, FAULTS[rate]))


_begin()
