"""The unfinished sweep of the same command: found below `outputs`, read, and locked against a second driver."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sft_exp.errors import ConfigError
from sft_exp.schema import Sweep
from sft_exp.sweeps import job as jobs

NEVER = "never"


def folder(settings: Sweep, key: str, fresh: Path) -> Path:
    """The folder of the sweep that goes on, or `fresh`. Raises ConfigError if `sweep.resume` names another sweep."""
    if settings.resume == NEVER:
        return fresh
    if settings.resume is None:
        return _unfinished(fresh.parent.parent, key) or fresh
    named = Path(settings.resume).expanduser().absolute()
    if not (named / jobs.RECORD).is_file():
        raise ConfigError(f"sweep.resume={named} is no sweep folder (it has no {jobs.RECORD}): give one from outputs/.")
    if _head(named).get("key") != key:
        raise ConfigError(
            f"sweep.resume={named} holds another sweep than this command: repeat the command that it was started with "
            f"({_head(named).get('command', 'unknown')})."
        )
    return named


def _unfinished(outputs: Path, key: str) -> Path | None:
    """The newest sweep of this key that has not ended and that nobody drives."""
    for file in sorted(outputs.glob(f"*/*-sweep/{jobs.RECORD}"), reverse=True):
        head = _head(file.parent)
        if head.get("key") == key and not head.get("ended"):
            with contextlib.suppress(BlockingIOError), locked(file.parent):
                return file.parent
    return None


def _head(folder: Path) -> dict[str, Any]:
    return jobs.read(folder)[0]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the sweep's lock; the system frees it when the driver dies. Raises BlockingIOError if another drives it."""
    with (folder / "sweep.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
