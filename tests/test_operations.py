"""Builds under torch's lock: one that is stopped leaves nothing, and what a killed one leaves stops nobody.

The builds are real ones of torch, ninja and g++. Their source includes a named pipe, so that the compiler waits for as
long as the test holds the other end.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from composing import machine, resolved
from sft_exp import descendants, operations
from sft_exp.progress import Progress
from sft_exp.request import Request
from sft_exp.rundir import RunDir

BUILD = """
import sys
from pathlib import Path
from torch.utils import cpp_extension
from sft_exp import operations
folder = Path(sys.argv[1])
def compile_():
    cpp_extension.load("op", [str(folder.parent / "op.cpp")], build_directory=str(folder), is_python_module=False)
    print("built", flush=True)
with operations.stopping_compilers():
    operations.build(folder, compile_, lambda text: print(text, flush=True))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "op"
    folder.mkdir()
    (tmp_path / "op.cpp").write_text('#include "pipe.h"\nextern "C" int answer() { return 42; }\n')
    os.mkfifo(tmp_path / "pipe.h")
    return folder


@pytest.fixture
def build(folder: Path) -> Iterator[Callable[[], "subprocess.Popen[str]"]]:
    """Start a build in a process of its own; what is left of it is ended after the test."""
    started: list[subprocess.Popen[str]] = []

    def start() -> "subprocess.Popen[str]":
        argv = [sys.executable, "-c", BUILD, str(folder)]
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return started[-1]

    yield start
    descendants.terminate([process.pid for process in started if process.poll() is None], signal.SIGKILL)
    descendants.terminate(compilers(folder), signal.SIGKILL)
    for process in started:
        process.wait()
        assert process.stdout
        process.stdout.close()


def compilers(folder: Path) -> list[int]:
    found = []
    for process in descendants.living():
        try:
            if Path(f"/proc/{process.pid}/cwd").readlink() == folder:
                found.append(process.pid)
        except OSError:
            continue
    return found


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value


@pytest.fixture
def compiling(folder: Path) -> Iterator[Callable[[], "contextlib.ExitStack[bool | None]"]]:
    """Wait until a compiler reads the pipe; it goes on reading until what is returned is closed."""
    with contextlib.ExitStack() as ends:

        def wait() -> "contextlib.ExitStack[bool | None]":
            end = ends.enter_context(contextlib.ExitStack())
            end.callback(os.close, wait_for(lambda: writer(folder.parent / "pipe.h")))
            return end

        yield wait


def writer(pipe: Path) -> int | None:
    """The writing end of a pipe, which can be had only once there is a reader."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def let_go(folder: Path) -> None:
    """Replace the pipe by a file, which a new compiler reads at once."""
    (folder.parent / "pipe.h").unlink()
    (folder.parent / "pipe.h").write_text("")


@pytest.mark.slow
def test_a_stopped_build_leaves_no_lock_and_no_compiler(folder: Path, build: Any, compiling: Any) -> None:
    process = build()
    compiling()
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=20)
    assert "stopped by SIGTERM while it compiled" in text
    assert not (folder / "lock").exists()
    assert compilers(folder) == []


@pytest.mark.slow
def test_the_lock_of_a_killed_build_is_removed_once_its_compilers_have_ended(
    folder: Path, build: Any, compiling: Any
) -> None:
    process = build()
    compiling()
    process.kill()
    process.communicate()
    assert (folder / "lock").exists()
    orphans = compilers(folder)
    assert orphans
    let_go(folder)
    again = build()
    assert f"waiting for another program that compiles in {folder}: process " in again.stdout.readline()
    descendants.terminate(orphans, signal.SIGKILL)
    text, _ = again.communicate(timeout=60)
    assert again.returncode == 0, text
    assert "built" in text
    assert not (folder / "lock").exists()


@pytest.mark.slow
def test_two_builds_are_one_after_the_other(folder: Path, build: Any, compiling: Any) -> None:
    first = build()
    reading = compiling()
    second = build()
    time.sleep(3)
    reading.close()
    for process in (first, second):
        text, _ = process.communicate(timeout=60)
        assert process.returncode == 0, text
        assert text == "built\n"


def test_a_lock_that_a_living_process_holds_is_waited_for(folder: Path) -> None:
    """However old it is: a plain script of DeepSpeed that shares the folder."""
    code = "import sys, time; lock = open(sys.argv[1], 'x'); print(flush=True); time.sleep(60)"
    argv = [sys.executable, "-c", code, str(folder / "lock")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        for path in (folder, folder / "lock"):
            os.utime(path, (0, 0))
        told: list[str] = []

        def tell(text: str) -> None:
            told.append(text)
            if len(told) == 3:
                (folder / "lock").unlink()
                holder.kill()

        operations.build(folder, (folder / "op.so").touch, tell)
        assert told[0].endswith(f"process {holder.pid}")
        assert len(told) == 3
    assert (folder / "op.so").exists()


def test_an_old_lock_of_nobody_is_removed_and_a_new_one_is_not(folder: Path) -> None:
    """The folder may be shared with a container whose processes cannot be seen from here."""
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        assert (folder / "lock").exists()
        if len(told) == 2:
            for path in folder.parent.rglob("*"):
                os.utime(path, (time.time() - operations.OLD_S - 1,) * 2)
            os.utime(folder, (time.time() - operations.OLD_S - 1,) * 2)

    (folder / "lock").touch()
    operations.build(folder, (folder / "op.so").touch, tell)
    assert f"delete {folder / 'lock'}" in told[0]
    assert len(told) == 2
    assert not (folder / "lock").exists()


def test_a_shell_in_the_folder_holds_nothing(folder: Path) -> None:
    with subprocess.Popen(["sleep", "60"], cwd=folder) as shell:
        assert operations.busy(folder) is None
        shell.kill()


def test_a_failed_build_is_not_taken_for_a_killed_one(folder: Path) -> None:
    def fail() -> None:
        raise RuntimeError("no compiler")

    with pytest.raises(RuntimeError, match="no compiler"):
        operations.build(folder, fail, print)
    (folder / "lock").touch()
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        (folder / "lock").unlink()

    operations.build(folder, (folder / "op.so").touch, tell)
    assert len(told) == 1


ANNOUNCED = """
import sys, time
from pathlib import Path
from torch.utils import cpp_extension
from sft_exp import operations
from sft_exp.rundir import RunDir
folder, run = Path(sys.argv[1]), RunDir(Path(sys.argv[2]))
with operations.announced(run):
    cpp_extension.load("op", [str(folder.parent / "op.cpp")], build_directory=str(folder), is_python_module=False)
    time.sleep(3 * operations.QUICK_S)  # slow, and nothing is compiled
    print("notice" if run.notice.exists() else "silence", flush=True)
"""


@pytest.mark.slow
def test_only_a_compilation_is_announced(
    folder: Path, compiling: Any, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDir(tmp_path_factory.mktemp("run"))
    progress = Progress(Request(experiment=resolved()), run)
    argv = [sys.executable, "-c", ANNOUNCED, str(folder), str(run.path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as first:
        reading = compiling()
        wait_for(run.notice.exists)
        for _ in range(2):
            progress.show([])
        assert capsys.readouterr().out == f"{operations.COMPILING}\n"
        reading.close()
        assert first.communicate(timeout=60)[0] == "notice\n"
    assert not run.notice.exists()
    let_go(folder)
    os.utime(folder.parent / "pipe.h", (0, 0))
    os.utime(folder / "op.so")
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "silence\n"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("hw=cpu2", []),
        ("hw=cpu2 zero=2", ["ShareMemCommBuilder"]),
        ("hw=cpu zero=2_offload", ["ShareMemCommBuilder", "CPUAdamBuilder"]),
        ("hw=4090x4 zero=3", []),
        ("hw=4090x4 zero=3_offload", ["CPUAdamBuilder"]),
    ],
)
def test_what_is_needed(here: Path, typed: str, expected: list[str]) -> None:
    assert operations.needed(resolved(*typed.split(), on=machine("4090", 4))) == expected
