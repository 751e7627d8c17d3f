"""`python -m sft_exp.worker RUN_DIR`: one rank, which knows its run folder and what the launcher tells it."""

import os
import sys
import time
from pathlib import Path

from sft_exp import faults, request
from sft_exp.descendants import die_with_parent
from sft_exp.rundir import RunDir
from sft_exp.schema import AdapterKind, Experiment

WITHOUT_BITSANDBYTES = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad")
"""Optimizers that come with torch or transformers."""


def own_log(run: RunDir, rank: int) -> None:
    """Send this rank's output, that of libraries in C included, to a log of its own."""
    with (run.logs / f"rank{rank}.log").open("ab") as log:
        sys.stdout.flush()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def not_needed(experiment: Experiment) -> list[str]:
    """Libraries that transformers and PEFT import wherever they are installed, for nothing: seconds of every start."""
    names = [] if experiment.zero.stage > 0 else ["deepspeed"]
    if experiment.adapter.kind is not AdapterKind.qlora and experiment.train.optimizer in WITHOUT_BITSANDBYTES:
        names.append("bitsandbytes")
    return names


def wait_for_data(run: RunDir) -> None:
    """Return when the parent's preparation is done; if it fails, the parent ends this process."""
    while not run.data.exists():
        time.sleep(0.02)


def pid_file(run: RunDir, group: int) -> Path:
    """File that says that this rank lives; numbers of processes on other machines than the first mean nothing there.

    `group` is the machine's number: GROUP_RANK under torchrun, CROSS_RANK under DeepSpeed's launcher.
    """
    return run.pids / (f"{os.getpid()}.machine{group}" if group else str(os.getpid()))


def main() -> None:
    """Train; leave a fault behind if it fails."""
    die_with_parent()
    run, rank = RunDir(Path(sys.argv[1])), int(os.environ["RANK"])
    own_log(run, rank)
    pid_file(run, int(os.environ.get("GROUP_RANK") or os.environ.get("CROSS_RANK") or "0")).touch()
    try:
        asked = request.read(run.request)
        for library in not_needed(asked.experiment):
            sys.modules[library] = None  # type: ignore[assignment]
        from sft_exp.train import train

        train(asked, run)
    except BaseException as error:
        faults.write(run, f"rank{rank}", error)
        raise


if __name__ == "__main__":
    main()
