"""Two machines, as two network namespaces of this one; and what one machine says when the other is gone."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from composing import machine, resolved
from sft_exp import faults, launch, machines, rundir
from sft_exp.errors import ConfigError, RunFailed
from sft_exp.request import Request
from sft_exp.rules import environment as shell
from sft_exp.rules import hw
from sft_exp.rundir import RunDir
from sft_exp.schema import Hw

ROOT = Path(__file__).parents[1]
NAMES = ("sftexp0", "sftexp1")
TINY = (
    "model=tiny", "hw=cpu", "eval=off", "dataset.limit=40", "dataset.max_length=64", "train.global_batch=4",
    "train.micro_batch=1", "train.logging_steps=1",
)  # fmt: skip
CARDS = machine("4090", 4)
TWO = ("hw=cpu", "hw.processes=1", "hw.machines=2", "hw.rendezvous=10.77.0.1:29500")


def test_command_of_each_machine(here: Path) -> None:
    text = [" ".join(launch.command(resolved(*TWO), Path("/r"), 29501, "python", number=n)) for n in (0, 1)]
    assert text == [
        f"python -m torch.distributed.run --nnodes 2 --node-rank {n} --nproc-per-node 1 --master-addr 10.77.0.1 "
        "--master-port 29501 --module sft_exp.worker /r"
        for n in (0, 1)
    ]


def test_command_of_each_machine_under_deepspeed(here: Path) -> None:
    experiment = resolved(*TWO, "hw.launcher=deepspeed", "hw.processes=2")
    text = [" ".join(launch.command(experiment, Path("/r"), 29501, "python", number=n)) for n in (0, 1)]
    assert text == [
        f"python -m deepspeed.launcher.runner --hostfile /r/hostfile --no_ssh --node_rank {n} "
        "--include machine0:0,1@machine1:0,1 --master_addr 10.77.0.1 --master_port 29501 --no_local_rank "
        "--module sft_exp.worker /r"
        for n in (0, 1)
    ]
    assert launch.hostfile(experiment) == "machine0 slots=2\nmachine1 slots=2\n"
    assert launch.hostfile(resolved(*TWO)) is None
    chosen = resolved("hw=4090x4", *TWO[1:], "hw.launcher=deepspeed", "hw.processes=2", "hw.devices=[1,3]", on=CARDS)
    assert launch.hostfile(chosen) == "machine0 slots=4\nmachine1 slots=4\n"
    assert "--include machine0:1,3@machine1:1,3" in " ".join(launch.command(chosen, Path("/r"), 29501, "python"))


@pytest.mark.parametrize(
    "wrong", ["hw.rendezvous=far", "hw.launcher=accelerate", "hw.machines=0", "+hw.rendezvous=a:x"]
)
def test_what_cannot_be_started_is_refused(here: Path, wrong: str) -> None:
    assert list(hw.problems(resolved(*TWO, wrong.lstrip("+"))))


def test_number_of_this_machine() -> None:
    assert machines.index({"SLURM_NODEID": "3"}) == 3
    assert machines.index({"SLURM_NODEID": "3", "SFT_EXP_MACHINE": "1"}) == 1
    assert machines.index({}) == 0


def test_a_machine_with_a_number_needs_to_know_the_others(here: Path) -> None:
    alone, second = resolved("model=tiny", "hw=cpu"), {"SFT_EXP_MACHINE": "1"}
    [sentence] = shell.problems(alone, second)
    assert "SFT_EXP_MACHINE=1" in sentence
    assert "hw.rendezvous=HOST:PORT" in sentence
    assert not list(shell.problems(alone, {"SFT_EXP_MACHINE": "0"}))
    assert not list(shell.problems(resolved(*TWO), second))


@pytest.mark.parametrize("script", sorted((ROOT / "launchers").iterdir()), ids=lambda file: file.name)
def test_launchers_are_correct_shell(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)


def rendezvous() -> str:
    return f"127.0.0.1:{launch.free_port()}"


def test_a_machine_that_cannot_take_part_is_heard_of() -> None:
    place = rendezvous()
    first = machines.First(place, 2)
    machines.join(place, 1, [], problem="too little memory")
    with pytest.raises(ConfigError, match="machine 1: too little memory"):
        first.gather("/r", [])
    first.end("refused", "")


def test_a_refusal_reaches_the_others() -> None:
    profile = Hw(machines=2, rendezvous=rendezvous())
    with pytest.raises(ConfigError), machines.first(profile):
        peer = machines.join(str(profile.rendezvous), 1, [])
        raise ConfigError("no such model")
    with pytest.raises(RunFailed, match="the run on machine 0 was refused: no such model"):
        peer.expect("folder", 10)


def test_the_rank_that_died_is_counted_over_all_machines(here: Path) -> None:
    run = RunDir(here / "run")
    run.logs.mkdir(parents=True)
    run.faults.mkdir()
    rundir.write_json(run.request, Request(experiment=resolved(*TWO, "hw.processes=2")))
    (run.logs / "launcher1.log").write_text("failed (exitcode: -9) local_rank: 1 (pid: 7) of binary: python")
    assert str(faults.to_error(run, faults.launcher(1), 1)).startswith("rank3 was killed by SIGKILL")


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


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def start(folder: Path, number: int, *words: str, script: str = "torchrun_multinode.sh") -> subprocess.Popen[str]:
    """One machine of a run, with what it prints in `<number>.txt`."""
    words = (*TINY, *TWO[1:], "+hw.env.GLOO_SOCKET_IFNAME=eth0", f"outputs={folder}", *words)
    with (folder / f"{number}.txt").open("w") as output:
        return subprocess.Popen(
            ["ip", "netns", "exec", NAMES[number], str(ROOT / "launchers" / script), str(number), *words],
            stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=environment(),
        )  # fmt: skip


def losses(folder: Path) -> list[float]:
    (file,) = folder.glob("*/*/metrics.jsonl")
    rows = map(json.loads, file.read_text().splitlines())
    return [row["train/loss"] for row in rows if "train/loss" in row]


@pytest.mark.nightly
@pytest.mark.parametrize(("script", "stage"), [("torchrun_multinode.sh", 0), ("deepspeed_hostfile.sh", 2)])
def test_two_machines_agree_with_one_process(tmp_path: Path, namespaces: None, script: str, stage: int) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    two.mkdir()
    both = [start(two, number, "train.max_steps=3", f"zero={stage}", script=script) for number in (0, 1)]
    codes = [process.wait(500) for process in both]
    text = "\n".join((two / f"{number}.txt").read_text() for number in (0, 1))
    assert codes == [0, 0], text
    argv = [sys.executable, "-m", "sft_exp", *TINY, "train.max_steps=3", f"outputs={one}", "tracking=none"]
    subprocess.run(argv, check=True, env=environment(), capture_output=True)
    assert losses(two) == pytest.approx(losses(one), rel=1e-4)
    assert len(losses(two)) == 3
    with sqlite3.connect(two / "mlflow.db") as store:
        assert store.execute("select status from runs").fetchall() == [("FINISHED",)]
    (folder,) = two.glob("*/*/request.json")
    assert {file.name for file in (folder.parent / "logs").glob("launcher*")} == {"launcher.log", "launcher1.log"}


def lose(number: int, fault: str) -> None:
    """Make a machine fail in one of the ways that machines do."""
    if fault == "link":
        sh(f"ip -n {NAMES[number]} link set eth0 down")
        return
    for pid in processes_on(number):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if fault == "killed" else signal.SIGSTOP)


def processes_on(number: int) -> list[int]:
    argv = ["ip", "netns", "pids", NAMES[number]]
    return [int(pid) for pid in subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()]


@pytest.mark.nightly
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("fault", ["killed", "stopped", "link"])
def test_a_lost_machine_ends_the_other(tmp_path: Path, namespaces: None, fault: str, lost: int) -> None:
    both = [start(tmp_path, number, "train.max_steps=100000", "tracking=none") for number in (0, 1)]
    deadline = time.monotonic() + 300
    while not (list(tmp_path.glob("*/*/metrics.jsonl")) and losses(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.5)
    lose(lost, fault)
    begun = time.monotonic()
    code = both[1 - lost].wait(120)
    took = time.monotonic() - begun
    for pid in processes_on(lost):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    both[lost].wait(60)
    text = (tmp_path / f"{1 - lost}.txt").read_text()
    print(f"machine {lost} {fault}: the other ended after {took:.1f} s: {text.splitlines()[-1]}")
    assert code == 1, text
    assert f"sft_exp: machine {lost}" in text, text
    assert "Traceback" not in text, text
    assert took < 60, took
    assert not processes_on(1 - lost)
