"""DeepSpeed's compiled operations: built once, by one process at a time, and no lock of a stopped build stays.

torch guards a build with a file named `lock`, which it waits for without end, and which stays when the process that
made it is killed. Every rank therefore builds under a flock of ours, which the system frees whatever happens.
"""

import contextlib
import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from sft_exp import descendants, rundir
from sft_exp.errors import RunStopped
from sft_exp.rules import zero as rules
from sft_exp.rundir import RunDir
from sft_exp.schema import Experiment

BUILDERS = {"shared-memory collectives": "ShareMemCommBuilder", "CPU Adam": "CPUAdamBuilder"}
"""DeepSpeed's builder of each extension that the rules name."""
COMPILING = "compiling DeepSpeed's CPU operations (once, about 2 minutes)"
QUICK_S = 1.5
"""Seconds that ninja takes at most where it finds nothing to compile."""
OLD_S = 300.0
"""Seconds without a new file after which a lock counts as left over though its maker cannot be known."""
STOP_S = 10.0
"""Seconds for a compiler to end after a signal."""
PROGRAMS = ("ninja", "c++", "g++", "cc1plus", "clang++", "clang", "as", "collect2", "ld")
"""Programs that may still write to a folder after the process that wanted the build was killed."""
_one_writer = threading.Lock()


def needed(experiment: Experiment) -> list[str]:
    """DeepSpeed's builders of what this run would compile at its first use."""
    return [BUILDERS[name] for name in rules.compiled(experiment)]


def load(experiment: Experiment, run: RunDir) -> None:
    """Load what this run needs, and compile it where that has not been done. Raises RunStopped on SIGTERM."""
    names = needed(experiment)
    if not names:
        return
    from deepspeed.accelerator import get_accelerator
    from deepspeed.git_version_info import installed_ops
    from torch.utils.cpp_extension import _get_build_directory

    with announced(run), stopping_compilers():
        for builder in filter(None, map(get_accelerator().create_op_builder, names)):
            # Where DeepSpeed was installed with its operations, or cannot have this one, there is nothing to build.
            if not installed_ops.get(builder.name, False) and builder.is_compatible():
                folder = Path(_get_build_directory(builder.name, False)).resolve()
                build(folder, builder.load, lambda text: say(run, text))


def say(run: RunDir, text: str) -> None:
    """Have the parent show a line."""
    with _one_writer:
        rundir.write_text(run.notice, text)


def tell(run: RunDir, text: str) -> None:
    """Write a line to this rank's log and, from the first rank, have the parent show it."""
    print(text, flush=True)
    if os.environ.get("RANK", "0") == "0":
        say(run, text)


@contextlib.contextmanager
def announced(run: RunDir) -> Iterator[None]:
    """Have the parent say that this is a compilation, if a compiler works for longer than it takes to look."""
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(run, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        run.notice.unlink(missing_ok=True)


def _watch(run: RunDir, done: threading.Event) -> None:
    before: set[int] = set()
    while not done.wait(QUICK_S):
        now = {process.pid for process in descendants.below(os.getpid()) if name(process.pid) == "ninja"}
        if now & before:
            say(run, COMPILING)
            return
        before = now


@contextlib.contextmanager
def stopping_compilers() -> Iterator[None]:
    """SIGTERM ends the compilers first and then becomes RunStopped, on which torch removes its lock."""

    def stop(number: int, _: object) -> None:
        deadline = time.monotonic() + STOP_S
        own = os.getpid()
        # Only the nearest are asked: ninja ends its compilers and removes what they have half written.
        descendants.terminate([process.pid for process in descendants.below(own) if process.parent == own])
        while (left := [process.pid for process in descendants.below(own)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        descendants.terminate(left, signal.SIGKILL)
        raise RunStopped(f"stopped by {signal.Signals(number).name} while it compiled", number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def build(folder: Path, compile_: Callable[[], Any], tell: Callable[[str], None]) -> None:
    """Call `compile_`, which builds in `folder` under torch's lock, while no other run does."""
    with folder.with_name(f".{folder.name}.sft_exp").open("a+") as ours:
        fcntl.flock(ours, fcntl.LOCK_EX)
        clear(folder, ours, tell)
        mark(ours, "building")
        try:
            compile_()
        finally:
            mark(ours, "")


def mark(ours: TextIO, text: str) -> None:
    """Leave a word for the next holder of our flock: `building` stays only if this process is killed."""
    ours.truncate(0)
    ours.write(text)
    ours.flush()


def clear(folder: Path, ours: TextIO, tell: Callable[[str], None], wait_s: float = 0.5) -> None:
    """Return when torch's lock is gone: given back by its holder, or removed because it has none.

    With our flock held no other run builds. A lock is left over if nothing on this machine works in the folder and
    either the last run was killed as it built, or the folder has long not changed: it may be shared with a machine or
    a container whose processes cannot be seen.
    """
    ours.seek(0)
    killed, lock = ours.read() == "building", folder / "lock"
    while killed or lock.exists():
        working = busy(folder)
        if not working and (killed or age(folder) > OLD_S):
            lock.unlink(missing_ok=True)
            return
        who = f"process {working}" if working else f"a process that cannot be seen; if there is none, delete {lock}"
        tell(f"waiting for another program that compiles in {folder}: {who}")
        time.sleep(wait_s)


def busy(folder: Path) -> int | None:
    """A living process that holds torch's lock, which stays open while it is held, or a compiler in the folder."""
    for process in descendants.living():
        proc = Path(f"/proc/{process.pid}")
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            compiles = name(process.pid) in PROGRAMS and (proc / "cwd").readlink() == folder
            if compiles or folder / "lock" in map(target, (proc / "fd").iterdir()):
                return process.pid
    return None


def name(pid: int) -> str:
    """Name of a process's program; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def target(link: Path) -> Path | None:
    """Where a link of /proc leads; None if it has gone."""
    try:
        return link.readlink()
    except OSError:
        return None


def age(folder: Path) -> float:
    """Seconds since the newest file in a folder was written."""
    return time.time() - max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
