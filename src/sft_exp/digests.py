"""SHA-256 of files, remembered, so that unchanged gigabytes are not read again at every start.

A file counts as unchanged if path, size, inode and both times are what they were. A time cannot be trusted while the
file is young: it may be written to again within the same tick of the clock. Such digests are not kept, as git does.
"""

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

_YOUNG = 2.0
"""Seconds; the coarsest clock of a common file system (FAT) has ticks of this length."""


class Digests:
    """The digests kept in one JSON file: absolute path -> [size, mtime, ctime, inode, digest], times in ns."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._kept = _read(file)
        self._changed = False

    def of(self, path: Path) -> str:
        """Digest of a file's content; raises OSError if it cannot be read."""
        key = os.path.abspath(path)  # noqa: PTH100 - Path.absolute leaves `..` in
        state = _state(path)
        *known, digest = self._kept.get(key, [""])
        if known == state:
            return str(digest)
        started = time.time()
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if state == _state(path) and max(state[1:3]) < (started - _YOUNG) * 1e9:
            self._kept[key] = [*state, digest]
            self._changed = True
        return digest

    def write(self) -> None:
        """Keep what is new; a cache that cannot be written only costs time."""
        if not self._changed:
            return
        # Another process may have written since: what it found is kept too.
        self._kept = {**_read(self._file), **self._kept}
        temporary = self._file.with_name(f".{self._file.name}.{uuid4().hex}")
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(self._kept), encoding="utf-8")
            temporary.replace(self._file)
        self._changed = False


def _state(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _read(file: Path) -> dict[str, list[int | str]]:
    """What the file holds; whatever is not as this module writes it is left out."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return {path: entry for path, entry in found.items() if _is_entry(entry)} if isinstance(found, dict) else {}


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, list) or len(entry) != 5:
        return False
    return all(isinstance(number, int) for number in entry[:4]) and isinstance(entry[4], str) and len(entry[4]) == 64
