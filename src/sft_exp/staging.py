"""Folders that appear in the cache all at once: filled under a hidden name and renamed when they are complete."""

import fcntl
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

_NAME = re.compile(r"\..+\.[0-9a-f]{32}")
_STALE = 24 * 3600  # seconds


def built(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return `folder`; if it is not there, let `build` fill it, in one process at a time.

    A process that is killed leaves its lock free and its half-filled folder under another name.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder):
        if not folder.is_dir():  # another process may have built it while this one waited
            remove_stale(folder.parent)
            with staged(folder) as unfinished:
                build(unfinished)
    return folder


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `folder` unless an error leaves the block."""
    staging = folder.with_name(f".{folder.name}.{uuid4().hex}")
    staging.mkdir(parents=True)
    try:
        yield staging
        _publish(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(staging: Path, folder: Path) -> None:
    """Rename, unless another process was first, with the same content, where locks do not work between machines."""
    try:
        staging.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def remove_stale(cache: Path) -> None:
    """Remove what killed processes left behind: hidden folders that nothing has been written to for a day."""
    for folder in cache.glob(".*.*"):
        if _NAME.fullmatch(folder.name) and folder.is_dir():
            with suppress(OSError):  # its process may publish it at this moment
                if time.time() - _last_write(folder) > _STALE:
                    shutil.rmtree(folder, ignore_errors=True)


def _last_write(folder: Path) -> float:
    # The files count too: writing to one leaves the time of its folder as it is.
    return max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
