"""Command and environment of the ranks, compared with recorded ones; processes are started, ended and not orphaned."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from composing import NO_CARDS, machine, resolved
from sft_exp import descendants, launch
from sft_exp.errors import RunStopped
from sft_exp.rundir import RunDir
from sft_exp.schema import Experiment

RUN = Path("/runs/one")
EIGHT = machine("4090", 8)


def argv(experiment: Experiment) -> str:
    return " ".join(launch.command(experiment, RUN, 29501, python="python"))


def env(experiment: Experiment, **base: str) -> dict[str, str]:
    return launch.environment(experiment, {"PATH": "/bin", **base}, 29501)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("hw=cpu", "python -m sft_exp.worker /runs/one"),
        ("hw=h200", "python -m sft_exp.worker /runs/one"),
        (
            "hw=4090x4",
            "python -m torch.distributed.run --nnodes 1 --nproc-per-node 4 --master-addr 127.0.0.1 "
            "--master-port 29501 --module sft_exp.worker /runs/one",
        ),
        (
            "hw=cpu2",
            "python -m torch.distributed.run --nnodes 1 --nproc-per-node 2 --master-addr 127.0.0.1 "
            "--master-port 29501 --module sft_exp.worker /runs/one",
        ),
        (
            "hw=4090x4 zero=2 hw.launcher=deepspeed",
            "python -m deepspeed.launcher.runner --include localhost:0,1,2,3 --master_port 29501 --no_local_rank "
            "--module sft_exp.worker /runs/one",
        ),
        (
            "hw=4090x4 zero=2 hw.launcher=deepspeed hw.devices=[4,5,6,7]",
            "python -m deepspeed.launcher.runner --include localhost:4,5,6,7 --master_port 29501 --no_local_rank "
            "--module sft_exp.worker /runs/one",
        ),
        (
            "hw=4090x4 hw.launcher=accelerate",
            "python -m accelerate.commands.launch --multi_gpu --num_processes 4 --num_machines 1 "
            "--mixed_precision no --dynamo_backend no --main_process_port 29501 --module sft_exp.worker /runs/one",
        ),
    ],
)
def test_command(here: Path, typed: str, expected: str) -> None:
    assert argv(resolved(*typed.split(), on=EIGHT)) == expected


def test_environment_of_one_process(here: Path) -> None:
    """DeepSpeed would look for MPI without a complete rendezvous."""
    found = env(resolved("hw=cpu", "hw.threads=3"))
    assert found.pop("PATH") == f"{Path(sys.executable).parent}:/bin"
    assert found == {
        "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "3", "RANK": "0",
        "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501",
        "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu",
    }  # fmt: skip


def test_environment_of_a_profile(here: Path) -> None:
    found = env(resolved("hw=4090x4", on=EIGHT))
    assert (found["NCCL_P2P_DISABLE"], found["NCCL_IB_DISABLE"]) == ("1", "1")
    assert found["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT", "DS_ACCELERATOR"} & found.keys()
    assert env(resolved("hw=h200", "hw.env={NCCL_DEBUG: INFO}", on=EIGHT))["NCCL_DEBUG"] == "INFO"


def test_leftovers_of_other_launches_are_dropped(here: Path) -> None:
    leftovers = {
        "RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "0",
        "ROLE_RANK": "1", "MASTER_ADDR": "far", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x",
        "ACCELERATE_MIXED_PRECISION": "fp16", "ACCELERATE_USE_DEEPSPEED": "true", "FSDP_VERSION": "2",
        "DEEPSPEED_CONFIG_FILE": "x",
    }  # fmt: skip
    found = env(resolved("hw=4090x4", on=EIGHT), HOME="/home/me", HF_HOME="/models", **leftovers)
    assert not leftovers.keys() & found.keys()
    assert (found["HOME"], found["HF_HOME"]) == ("/home/me", "/models")


@pytest.mark.parametrize(
    ("typed", "given", "expected"),
    [
        ("hw=4090x1", None, "0"),
        ("hw=4090x1", "3,4", "3"),
        ("hw=4090x4", "4,5,6,7", "4,5,6,7"),
        ("hw=4090x4", "7,6,5,4,3", "7,6,5,4"),
        ("hw=4090x1 hw.devices=[5]", "3,4", "5"),
        ("hw=4090x4", "GPU-7,GPU-2,GPU-5,GPU-1", "7,2,5,1"),
        ("hw=cpu", "3,4", ""),
        ("hw=cpu2", None, ""),
        ("hw=4090x1 hw.launcher=deepspeed zero=2", "3,4", "3"),
    ],
)
def test_cards(here: Path, monkeypatch: pytest.MonkeyPatch, typed: str, given: str | None, expected: str) -> None:
    base = {} if given is None else {"CUDA_VISIBLE_DEVICES": given}
    for name, value in base.items():
        monkeypatch.setenv(name, value)
    assert env(resolved(*typed.split(), on=EIGHT), **base)["CUDA_VISIBLE_DEVICES"] == expected


def test_deepspeed_launcher_sets_the_cards_itself(here: Path) -> None:
    experiment = resolved("hw=4090x4", "zero=2", "hw.launcher=deepspeed", on=EIGHT)
    assert "CUDA_VISIBLE_DEVICES" not in launch.added(experiment, {}, 1)


def test_added_is_what_environment_adds(here: Path) -> None:
    experiment = resolved("hw=4090x4", on=EIGHT)
    base = {"PATH": "/bin", "HOME": "/home/me", "RANK": "1"}
    added = launch.added(experiment, base, 5)
    assert launch.environment(experiment, base, 5) == {"HOME": "/home/me", **added}


def test_free_port() -> None:
    assert 1024 <= launch.free_port() < 65536


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path)
    run.logs.mkdir()
    run.pids.mkdir()
    return run


def wait_for(text: str, log: Path) -> None:
    deadline = time.monotonic() + 20
    while text not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_processes_end_in_order(run: RunDir) -> None:
    """SIGTERM first, and the log has what the process said to it."""
    code = """
import signal, sys, time
def end(*_):
    print("cleaned up", flush=True); sys.exit(5)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(60)
"""
    processes = launch.Processes(run)
    processes.start("rank0", [sys.executable, "-c", code], dict(os.environ))
    log = run.logs / "rank0.log"
    wait_for("ready", log)
    assert processes.exit_code("rank0") is None
    processes.end(grace_s=20)
    assert processes.exit_code("rank0") == 5
    assert log.read_text().split("\n")[:2] == ["ready", "cleaned up"]


def test_processes_that_do_not_listen_are_killed(run: RunDir) -> None:
    """Ranks too, which the launcher started: they are known by their pid file."""
    code = f"""
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    (pathlib.Path({str(run.pids)!r}) / str(os.getpid())).touch()
print("ready", flush=True)
time.sleep(60)
"""
    processes = launch.Processes(run)
    processes.start("launcher", [sys.executable, "-c", code, str(run.path)], dict(os.environ))
    wait_for("ready\nready", run.logs / "launcher.log")
    [rank] = [int(file.name) for file in run.pids.iterdir()]
    processes.end(grace_s=0.3)
    assert processes.exit_code("launcher") == -signal.SIGKILL
    deadline = time.monotonic() + 5
    while Path(f"/proc/{rank}/cmdline").exists() and Path(f"/proc/{rank}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_orphans_of_a_killed_rank_are_ended(run: RunDir) -> None:
    """A compiler that a rank has started, in a process group of its own as ninja does it."""
    code = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], process_group=0)
print(child.pid, flush=True)
time.sleep(60)
"""
    processes = launch.Processes(run)
    processes.start("rank0", [sys.executable, "-c", code], dict(os.environ))
    wait_for("\n", run.logs / "rank0.log")
    compiler = int((run.logs / "rank0.log").read_text())
    processes.children["rank0"].kill()
    processes.children["rank0"].wait()
    assert compiler in [process.pid for process in descendants.living()]
    begun = time.monotonic()
    processes.end(grace_s=20)
    assert time.monotonic() - begun < 5, "it was not asked to end"
    assert compiler not in [process.pid for process in descendants.living()]


def test_a_pid_taken_over_by_another_program_is_left_alone(run: RunDir) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
    try:
        (run.pids / str(other.pid)).touch()
        launch.Processes(run).end(grace_s=0.2)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_become_an_error(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(RunStopped, match=number.name) as caught, launch.stop_on_signal():
        os.kill(os.getpid(), number)
        time.sleep(1)
    assert caught.value.exit_code == 128 + number
    assert signal.getsignal(number) is before


def test_children_die_with_their_parent(run: RunDir) -> None:
    """Even when the parent is killed and can do nothing about it."""
    code = f"""
import os, sys, time
from pathlib import Path
from sft_exp import descendants, launch
from sft_exp.rundir import RunDir
processes = launch.Processes(RunDir(Path({str(run.path)!r})))
processes.start("rank0", [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"],
                dict(os.environ))
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    log = run.logs / "rank0.log"
    wait_for("\n", log)
    child = int(log.read_text())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child}/cmdline").exists() and Path(f"/proc/{child}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_deepspeed_launcher_takes_the_visible_cards(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    found = argv(resolved("hw=4090x4", "zero=2", "hw.launcher=deepspeed", on=EIGHT))
    assert "--include localhost:4,5,6,7" in found


def test_deepspeed_launcher_without_cards(here: Path) -> None:
    found = argv(resolved("hw=cpu2", "zero=2", "hw.launcher=deepspeed"))
    assert "--num_gpus 2" in found
    assert "--include" not in found


def test_no_card_is_asked_for_on_the_cpu(here: Path) -> None:
    experiment = resolved("hw=auto", on=NO_CARDS)
    assert env(experiment)["CUDA_VISIBLE_DEVICES"] == ""
    assert argv(experiment) == "python -m sft_exp.worker /runs/one"
