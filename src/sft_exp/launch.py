"""Starting the ranks: the command and environment are values of pure functions; one class starts, watches and ends."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from sft_exp import descendants
from sft_exp.errors import RunPruned, RunStopped
from sft_exp.rundir import RunDir
from sft_exp.schema import Device, Experiment, Launcher

INHERITED = re.compile(
    r"(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|ROLE_\w+|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_\w+"
    r"|ACCELERATE_\w+|FSDP_\w+|CROSS_RANK|DEEPSPEED_\w+)"
)
"""Variables left over from other launches, which would change this one in silence."""
GRACE_S = 20.0
"""Seconds the ranks have to end after a signal before they are killed."""
PRUNE = signal.SIGUSR1
"""Signal by which a sweep ends a job that its search has given up."""
PLAN_PORT = 29500
"""Port shown where nothing is started."""
AFTERMATH_S = 10.0
"""Seconds the launcher has to end by itself after a rank has reported a fault."""
HOSTFILE = "hostfile"
"""List of the machines in the run folder, for DeepSpeed's launcher."""
ALLOCATOR = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}
"""Variables that set torch's allocator, the new name and the old one: a user's own setting is left alone."""


def command(
    experiment: Experiment, folder: Path, port: int, python: str = sys.executable, module: str = "sft_exp.worker",
    number: int = 0,
) -> list[str]:  # fmt: skip
    """Command line that starts the ranks of `module` on machine `number`; a rank is told its run folder only."""
    worker = [module, str(folder)]
    count = experiment.hw.processes or 1
    if experiment.hw.ranks == 1:
        return [python, "-m", *worker]
    launcher = experiment.hw.launcher
    if launcher is Launcher.deepspeed:
        return [
            python, "-m", "deepspeed.launcher.runner", *_hosts(experiment, folder, number), "--master_port", str(port),
            "--no_local_rank", "--module", *worker,
        ]  # fmt: skip
    if launcher is Launcher.accelerate:
        # Everything is named, so that no answer file left in ~/.cache decides; precision is the trainer's business.
        return [
            python, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(count),
            "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
            "--main_process_port", str(port), "--module", *worker,
        ]  # fmt: skip
    return [
        python, "-m", "torch.distributed.run", *_nodes(experiment, number), "--nproc-per-node", str(count),
        "--master-addr", _first(experiment), "--master-port", str(port), "--module", *worker,
    ]  # fmt: skip


def _hosts(experiment: Experiment, folder: Path, number: int) -> list[str]:
    """Machines and cards for DeepSpeed's launcher."""
    hw, used = experiment.hw, ",".join(map(str, _cards(experiment)))
    if hw.machines > 1:
        # Without ssh each machine starts its own ranks, as under torchrun.
        every = "@".join(f"machine{n}:{used}" for n in range(hw.machines))
        return [
            "--hostfile", str(folder / HOSTFILE), "--no_ssh", "--node_rank", str(number), "--include", every,
            "--master_addr", _first(experiment),
        ]  # fmt: skip
    # `--num_gpus` would always take the first cards, whatever CUDA_VISIBLE_DEVICES says; on the CPU there are none.
    return ["--include", f"localhost:{used}"] if hw.device is Device.cuda else ["--num_gpus", str(hw.processes or 1)]


def hostfile(experiment: Experiment) -> str | None:
    """The machines as DeepSpeed's launcher wants them listed; their names only count them. None if it does not."""
    hw = experiment.hw
    if hw.machines == 1 or hw.launcher is not Launcher.deepspeed:
        return None
    slots = max(_cards(experiment)) + 1
    return "".join(f"machine{number} slots={slots}\n" for number in range(hw.machines))


def _cards(experiment: Experiment) -> list[int]:
    return experiment.hw.devices or list(range(experiment.hw.processes or 1))


def _nodes(experiment: Experiment, number: int) -> list[str]:
    count = experiment.hw.machines
    return ["--nnodes", str(count), *(["--node-rank", str(number)] if count > 1 else [])]


def _first(experiment: Experiment) -> str:
    hw = experiment.hw
    return hw.rendezvous.rpartition(":")[0] if hw.machines > 1 and hw.rendezvous else "127.0.0.1"


def environment(experiment: Experiment, base: Mapping[str, str], port: int) -> dict[str, str]:
    """Environment of the ranks: the user's, without leftovers of other launches, with the profile's variables."""
    env = {key: value for key, value in base.items() if not INHERITED.fullmatch(key)}
    env.update(added(experiment, base, port))
    return env


def added(experiment: Experiment, base: Mapping[str, str], port: int) -> dict[str, str]:
    """What `environment` sets, apart from what it inherits: this is shown and recorded."""
    hw = experiment.hw
    extra = {
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(hw.threads or 1),
        # The environment's own programs (ninja, for DeepSpeed) are found even if it is not activated.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{base.get('PATH', '')}",
        **hw.env,
    }
    if hw.ranks == 1:
        # DeepSpeed in one process looks for MPI unless it finds a complete rendezvous.
        extra |= {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    if hw.device is Device.cpu:
        extra |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    elif hw.launcher is not Launcher.deepspeed or hw.ranks == 1:
        extra["CUDA_VISIBLE_DEVICES"] = visible(experiment, base)
    if hw.device is Device.cuda:
        # CUDA numbers the fastest card first unless told to count as the driver, nvidia-smi and `hw.devices` do.
        extra["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        if not ALLOCATOR & (base.keys() | hw.env.keys()):
            # Blocks may grow, so that free memory is not lost in pieces between them (docs/memory.md has a run).
            extra["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    return extra


def visible(experiment: Experiment, base: Mapping[str, str]) -> str:
    """Cards for the ranks: those named in `hw.devices`, else the first ones that the user's shell leaves visible."""
    hw = experiment.hw
    if hw.devices:
        return ",".join(str(index) for index in hw.devices)
    given = [card.strip() for card in base.get("CUDA_VISIBLE_DEVICES", "").split(",") if card.strip()]
    cards = given or [str(index) for index in range(hw.processes or 1)]
    return ",".join(cards[: hw.processes or 1])


def free_port() -> int:
    """A TCP port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def stop_on_signal() -> Iterator[None]:
    """SIGTERM, SIGINT and `PRUNE` become errors, so that everything is ended in order; the old handlers come back."""

    def stop(number: int, _: object) -> None:
        if number == PRUNE:
            raise RunPruned("pruned by the search of its sweep", number)
        raise RunStopped(f"stopped by {signal.Signals(number).name}", number)

    old = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT, PRUNE)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class Processes:
    """Processes of one run, each in a session of its own so that a Ctrl-C reaches only the parent."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        # What a killed rank leaves behind, such as a compiler, is found below this process and not lost.
        descendants.adopt_orphans()

    def start(self, name: str, argv: list[str], env: Mapping[str, str]) -> None:
        """Start a process with its output in `logs/<name>.log`."""
        with (self.run.logs / f"{name}.log").open("ab") as log:
            self.children[name] = subprocess.Popen(
                argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True, preexec_fn=descendants.die_with_parent,
            )  # fmt: skip

    def exit_code(self, name: str) -> int | None:
        """Exit code of a process, None while it runs."""
        return self.children[name].poll()

    def end(self, grace_s: float = GRACE_S) -> None:
        """Ask all to end, wait, then kill what is left: launchers, ranks and whatever these have started."""
        asked = {child.pid for child in self.children.values() if child.poll() is None}
        descendants.terminate(list(asked))
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and (left := self._left()):
            # A launcher passes the signal on; those whose launcher is gone are asked here, once.
            new = set() if self._alive() else set(left) - asked
            descendants.terminate(list(new))
            asked |= new
            time.sleep(0.1)
        descendants.terminate(self._left(), signal.SIGKILL)
        for child in self.children.values():
            child.wait()

    def _alive(self) -> bool:
        return any(child.poll() is None for child in self.children.values())

    def _left(self) -> list[int]:
        """Living processes of the run: below this one and in other sessions, since each was started in its own."""
        own = os.getsid(0)
        return [process.pid for process in descendants.below(os.getpid()) if process.session != own]
