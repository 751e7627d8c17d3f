"""Ranks of runs whose parent is gone: they hold memory and nobody waits for them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sft_exp import rundir
from sft_exp.doctor.line import Line, ok, warn
from sft_exp.rundir import RunDir

WORKER = b"sft_exp.worker"


@dataclass(frozen=True)
class Rank:
    """A living process of a run, launchers included."""

    pid: int
    folder: Path


def ranks(proc: Path = Path("/proc")) -> Iterator[Rank]:
    """Every process on this machine whose command line names our worker and a run folder."""
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:
            continue
        if WORKER in words[:-1]:
            yield Rank(int(folder.name), Path(words[-1].decode(errors="replace")))


def orphaned(rank: Rank) -> bool:
    """Whether the run's parent, which would have ended the rank, is gone."""
    try:
        status = rundir.read_json(RunDir(rank.folder).status)
    except (OSError, ValueError):
        return True
    if status.get("state") != "running":
        return True
    try:
        return b"sft_exp" not in Path(f"/proc/{status['pid']}/cmdline").read_bytes()
    except OSError:
        return True


def line() -> Line:
    """The line on this machine."""
    found = list(ranks())
    left = [rank for rank in found if orphaned(rank)]
    if not left:
        return ok("left-over ranks", f"none{f' ({len(found)} of living runs)' if found else ''}")
    runs = ", ".join(sorted({rank.folder.name for rank in left}))
    pids = " ".join(str(rank.pid) for rank in sorted(left, key=lambda rank: rank.pid))
    return warn("left-over ranks", f"{len(left)} without a parent, of {runs}", f"end them with kill {pids}")
