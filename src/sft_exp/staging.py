"""Folders that appear in the cache all at once: filled under a hidden name and renamed when they are complete."""

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

COMPLETE = "report.json"
"""File whose presence says that a folder is complete."""
_NAME = re.compile(r"\.[0-9a-f]{32}\.[0-9a-f]{32}")
_STALE = 24 * 3600  # seconds


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `folder` unless an error leaves the block."""
    staging = folder.with_name(f".{folder.name}.{uuid4().hex}")
    staging.mkdir(parents=True)
    try:
        yield staging
        publish(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def publish(staging: Path, folder: Path) -> None:
    """Rename, unless another process was first, with the same content."""
    try:
        staging.rename(folder)
    except OSError:
        if not (folder / COMPLETE).is_file():
            raise


def remove_stale(cache: Path) -> None:
    """Remove what killed processes left behind: hidden folders that nothing has been written to for a day."""
    for folder in cache.glob(".*.*"):
        if _NAME.fullmatch(folder.name):
            with suppress(OSError):  # its process may publish it at this moment
                if time.time() - _last_write(folder) > _STALE:
                    shutil.rmtree(folder, ignore_errors=True)


def _last_write(folder: Path) -> float:
    # The files count too: writing to one leaves the time of its folder as it is.
    return max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
