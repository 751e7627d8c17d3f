"""Processes below this one, orphans among them: what a run has started and must not outlive it."""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True)
class Process:
    """One living process."""

    pid: int
    parent: int
    session: int


def die_with_parent() -> None:
    """Linux ends this child with SIGTERM when its parent is gone, even by SIGKILL."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def adopt_orphans() -> None:
    """Processes below this one whose parent dies become its children, and not those of the first process."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def living() -> Iterator[Process]:
    """Every process that can be seen; zombies are dead."""
    return (process for process, state in _seen() if state not in "ZX")


def children(pid: int) -> list[Process]:
    """Living children of a process."""
    return [process for process in living() if process.parent == pid]


def zombies(pid: int) -> list[Process]:
    """Children of a process that have ended and were not waited for."""
    return [process for process, state in _seen() if state == "Z" and process.parent == pid]


def _seen() -> Iterator[tuple[Process, str]]:
    """Every process with the letter of its state."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it has just ended
            continue
        yield Process(int(folder.name), int(parent), int(session)), state


def below(pid: int) -> list[Process]:
    """Children of a process, their children and so on."""
    by_parent: dict[int, list[Process]] = {}
    for process in living():
        by_parent.setdefault(process.parent, []).append(process)
    found, unvisited = [], [pid]
    while unvisited:
        new = by_parent.get(unvisited.pop(), [])
        found += new
        unvisited += [process.pid for process in new]
    return found


def terminate(pids: list[int], number: signal.Signals = signal.SIGTERM) -> None:
    """Send a signal to processes, some of which may have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
