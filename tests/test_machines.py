"""Two machines, as two network namespaces of this one; and what one machine says when the other is gone."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from composing import resolved
from sft_exp import launch, machines
from sft_exp.rules import hw

ROOT = Path(__file__).parents[1]
NAMES = ("sftexp0", "sftexp1")
TWO = ("hw=cpu", "hw.processes=1", "hw.machines=2", "hw.rendezvous=10.77.0.1:29500")


def test_command_of_each_machine(here: Path) -> None:
    text = [" ".join(launch.command(resolved(*TWO), Path("/r"), 29501, "python", number=n)) for n in (0, 1)]
    assert text == [
        f"python -m torch.distributed.run --nnodes 2 --node-rank {n} --nproc-per-node 1 --master-addr 10.77.0.1 "
        "--master-port 29501 --module sft_exp.worker /r"
        for n in (0, 1)
    ]


@pytest.mark.parametrize("wrong", ["hw.rendezvous=far", "hw.launcher=deepspeed", "hw.machines=0", "+hw.rendezvous=a:x"])
def test_what_cannot_be_started_is_refused(here: Path, wrong: str) -> None:
    assert list(hw.problems(resolved(*TWO, wrong.lstrip("+"))))


def test_number_of_this_machine() -> None:
    assert machines.index({"SLURM_NODEID": "3"}) == 3
    assert machines.index({"SLURM_NODEID": "3", "SFT_EXP_MACHINE": "1"}) == 1
    assert machines.index({}) == 0


def sh(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)


@pytest.fixture
def namespaces() -> Iterator[None]:
    if os.getuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    try:
        for name in NAMES:
            sh(f"ip netns add {name}")
        sh(f"ip link add eth0 netns {NAMES[0]} type veth peer name eth0 netns {NAMES[1]}")
        for number, name in enumerate(NAMES):
            sh(f"ip -n {name} addr add 10.77.0.{number + 1}/24 dev eth0")
            sh(f"ip -n {name} link set eth0 up")
            sh(f"ip -n {name} link set lo up")
    except subprocess.CalledProcessError as error:
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        pytest.skip(f"network namespaces cannot be made: {error.stderr!r}")
    yield
    for name in NAMES:
        sh(f"ip netns del {name}")


def start(folder: Path, number: int, steps: int) -> subprocess.Popen[str]:
    words = [
        "model=tiny", *TWO, "+hw.env.GLOO_SOCKET_IFNAME=eth0", f"outputs={folder}", "train.global_batch=8",
        f"train.max_steps={steps}", "train.logging_steps=1", "train.micro_batch=1",
    ]  # fmt: skip
    return subprocess.Popen(
        ["ip", "netns", "exec", NAMES[number], str(ROOT / "launchers" / "torchrun_multinode.sh"), str(number), *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip


def losses(folder: Path) -> list[float]:
    (file,) = folder.glob("*/*/metrics.jsonl")
    rows = map(json.loads, file.read_text().splitlines())
    return [row["train/loss"] for row in rows if "train/loss" in row]


@pytest.mark.slow
def test_two_machines_agree_with_one_process(tmp_path: Path, namespaces: None) -> None:
    both = [start(tmp_path / "two", number, 3) for number in (0, 1)]
    outputs = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], "\n".join(outputs)
    subprocess.run(
        [ROOT / ".venv/bin/python", "-m", "sft_exp", "model=tiny", "hw=cpu", f"outputs={tmp_path}/one",
         "train.global_batch=8", "train.max_steps=3", "train.logging_steps=1", "train.micro_batch=1"],
        check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True,
    )  # fmt: skip
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["killed", "stopped", "link"])
def test_a_lost_machine_ends_the_other(tmp_path: Path, namespaces: None, fault: str) -> None:
    first, second = (start(tmp_path, number, 100000) for number in (0, 1))
    deadline = time.monotonic() + 200
    while not (list(tmp_path.glob("*/*/metrics.jsonl")) and losses(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.5)
    pids = subprocess.run(["ip", "netns", "pids", NAMES[1]], capture_output=True, text=True, check=True).stdout.split()
    if fault == "link":
        sh(f"ip -n {NAMES[1]} link set eth0 down")
    else:
        for pid in pids:
            os.kill(int(pid), signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
    begun = time.monotonic()
    text = first.communicate(timeout=120)[0]
    took = time.monotonic() - begun
    left = subprocess.run(["ip", "netns", "pids", NAMES[1]], capture_output=True, text=True, check=True).stdout.split()
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
    second.wait(60)
    assert first.returncode == 1, text
    assert "machine 1" in text, text
    assert took < 60, took
