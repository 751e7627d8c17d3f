"""Memory of the host: kernel files of both cgroup versions, limits, and the lines about them."""

import dataclasses
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composing import machine, resolved
from sft_exp import host
from sft_exp.doctor import child, memory
from sft_exp.doctor.line import Line, State
from sft_exp.host import GIB, Host
from sft_exp.machine import look
from sft_exp.rules import machine as rules
from sft_exp.schema import Experiment

GPU = machine("4090", 4)
BIG = Host(total=512 * GIB, available=500 * GIB, shm_total=8 * GIB, shm_free=8 * GIB)


def kernel(root: Path, files: dict[str, str]) -> Path:
    """Kernel files below `root`, with 64 GiB of memory of which 48 are available."""
    files = {"proc/meminfo": f"MemTotal: {64 * 2**20} kB\nMemAvailable: {48 * 2**20} kB\n", **files}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def only(line: Line | list[Line]) -> tuple[State, str]:
    [line] = line if isinstance(line, list) else [line]
    return line.state, f"{line.found}: {line.advice}"


def offloaded(*typed: str) -> Experiment:
    return resolved("model=qwen7b", "hw=4090x4", "zero=3_offload", *typed, on=GPU)


def test_a_machine_without_limits(tmp_path: Path) -> None:
    found = host.read(kernel(tmp_path, {}))
    assert (found.total, found.available, found.limit) == (64 * GIB, 48 * GIB, None)
    assert (found.shm_total, found.shm_free) == (None, None)


V2 = {
    "proc/self/cgroup": "0::/user/job\n", "sys/fs/cgroup/user/job/memory.max": f"{16 * GIB}\n",
    "sys/fs/cgroup/user/job/memory.current": f"{10 * GIB}\n", "sys/fs/cgroup/user/memory.max": "max\n",
    "sys/fs/cgroup/user/job/memory.stat": f"anon 1\ninactive_file {4 * GIB}\n",
}  # fmt: skip
V2_CONTAINER = {
    "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{16 * GIB}\n",
    "sys/fs/cgroup/memory.current": f"{6 * GIB}\n",
}  # fmt: skip
V1 = {
    "proc/self/cgroup": "4:memory:/job\n3:cpu:/\n0::/\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{16 * GIB}\n",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{10 * GIB}\n",
    "sys/fs/cgroup/memory/job/memory.stat": f"total_inactive_file {4 * GIB}\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{20 * GIB}\n",
}
V1_CONTAINER = {
    "proc/self/cgroup": "4:memory:/docker/abc\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{16 * GIB}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{6 * GIB}\n",
}


@pytest.mark.parametrize(
    "files", [V2, V2_CONTAINER, V1, V1_CONTAINER], ids=["v2", "v2 in a container", "v1", "v1 in a container"]
)
def test_the_limit_of_a_container(tmp_path: Path, files: dict[str, str]) -> None:
    """File cache that would be given back is not counted as used."""
    found = host.read(kernel(tmp_path, files))
    assert (found.limit, found.available) == (16 * GIB, 10 * GIB)


def test_a_limit_above_the_memory_is_none(tmp_path: Path) -> None:
    files = {**V2_CONTAINER, "sys/fs/cgroup/memory.max": f"{9 * 2**60}\n"}
    assert host.read(kernel(tmp_path, files)).limit is None


def test_the_real_host() -> None:
    found = host.read()
    assert 0 < found.available <= found.total


def test_offload_that_does_not_fit(here: Path) -> None:
    """The run refuses it with the sentence that the doctor shows."""
    small = Host(total=64 * GIB, available=48 * GIB, limit=50 * GIB)
    state, text = only(memory.ram(offloaded(), small))
    assert state is State.fail
    for words in ("zero=3_offload", "48.0 GiB are available", "limit is 50.0 GiB", "adapter=lora"):
        assert words in text
    assert f"{text}." in list(rules.problems(offloaded(), dataclasses.replace(GPU, host=small)))
    assert only(memory.ram(offloaded(), BIG))[0] is State.ok
    assert only(memory.ram(offloaded("adapter=lora"), small))[0] is State.ok
    assert only(memory.ram(resolved("model=qwen7b", "hw=4090x4", "zero=3", on=GPU), small))[0] is State.ok


def test_what_offload_needs(here: Path) -> None:
    """7.6 billion parameters: 22 bytes each in the optimizer's step, and two more for the weights."""
    assert 180e9 < host.offload_bytes(offloaded()) < 190e9
    assert host.offload_bytes(resolved("model=qwen7b", "hw=cpu", "zero=0")) == 0
    assert host.offload_bytes(offloaded("model.shape.hidden_size=null")) == 0


@pytest.mark.parametrize(
    ("typed", "free", "state"),
    [
        ("hw=4090x4", GIB // 16, State.fail),
        ("hw=4090x4 hw.env.NCCL_P2P_DISABLE='0'", GIB // 16, State.warn),
        ("hw=4090x4", 2 * GIB, State.ok),
        ("hw=4090x1", GIB // 16, State.ok),
        ("hw=cpu2", GIB // 16, State.warn),
        ("hw=cpu2 zero=2", GIB // 16, State.fail),
    ],
)
def test_shared_memory(here: Path, typed: str, free: int, state: State) -> None:
    """What Docker gives to a container is too little for cards without peer-to-peer copies."""
    line = memory.shm(resolved("model=tiny", *typed.split(), on=GPU), Host(total=1, available=1, shm_free=free))
    assert only(line)[0] is state
    assert only(memory.shm(resolved("model=tiny", "hw=cpu"), Host(total=1, available=1)))[0] is State.skip


def test_a_real_small_shared_memory(tmp_path: Path) -> None:
    """A tmpfs of 1 MiB in a mount namespace of its own."""
    kernel(tmp_path, {})
    (tmp_path / "dev/shm").mkdir(parents=True)
    code = f"from pathlib import Path; from sft_exp import host; print(host.read(Path({str(tmp_path)!r})).shm_free)"
    mount = f"mount -t tmpfs -o size=1m none {tmp_path}/dev/shm"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        pytest.skip("mount namespaces are not allowed here")
    assert int(done.stdout) == 2**20


def test_a_low_limit_on_locked_memory(here: Path) -> None:
    """A real limit, read by a child that has it."""
    code = "from sft_exp import host; print(host.read().locked)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=dict(os.environ),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536)),
    )  # fmt: skip
    low = Host(total=1, available=1, locked=int(done.stdout))
    assert low.locked == 65536
    state, text = only(memory.locked(offloaded("zero.pin_memory=true"), low))
    assert state is State.warn
    assert "0.1 MiB" in text
    assert "zero.pin_memory=false" in text
    assert only(memory.locked(offloaded(), low))[0] is State.ok
    assert only(memory.locked(offloaded("zero.pin_memory=true"), BIG))[0] is State.ok


def test_pinned_memory(here: Path) -> None:
    asked: list[int] = []

    def ask(answer: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
        def allocate(size: int) -> dict[str, Any]:
            asked.append(size)
            return answer

        return allocate

    assert only(memory.pinned(offloaded(), BIG, ask({"seconds": 3.0})))[1].endswith("GiB allocated in 3.0 s: ")
    assert asked == [host.offload_bytes(offloaded()) // 4]
    refused = ask({"error": "CUDA error: invalid argument"})
    state, text = only(memory.pinned(offloaded("zero.pin_memory=true"), BIG, refused))
    assert (state, "set zero.pin_memory=false" in text) == (State.fail, True)
    assert only(memory.pinned(offloaded(), BIG, refused))[0] is State.warn
    assert only(memory.pinned(offloaded(), Host(total=1, available=1), refused))[0] is State.skip
    assert only(memory.pinned(resolved("model=tiny", "hw=cpu"), BIG, refused))[0] is State.skip


def test_a_real_pinned_allocation_without_a_card(here: Path) -> None:
    """torch's own refusal, through the child process."""
    if look().usable():
        pytest.skip("there is a card")
    answer = child.ask(resolved("model=tiny", "hw=cpu"), "pin", "4096")
    assert answer.keys() == {"error"}
    assert answer["error"]


def test_a_child_that_hangs_or_dies(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = resolved("model=tiny", "hw=cpu")
    assert child.ask(experiment, "pin", "none")["error"].startswith("ValueError")
    (here / "sitecustomize.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", f"{here}:{os.environ.get('PYTHONPATH', '')}")
    assert child.ask(experiment, "build", limit_s=0.5) == {"error": "no answer within 0 s"}
