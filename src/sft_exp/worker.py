"""`python -m sft_exp.worker RUN_DIR`: one rank, which knows its run folder and what the launcher tells it."""

import os
import sys
import time
from pathlib import Path

from sft_exp import faults, request
from sft_exp.launch import die_with_parent
from sft_exp.rundir import RunDir


def own_log(run: RunDir, rank: int) -> None:
    """Send this rank's output, that of libraries in C included, to a log of its own."""
    with (run.logs / f"rank{rank}.log").open("ab") as log:
        sys.stdout.flush()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def wait_for_data(run: RunDir) -> None:
    """Return when the parent's preparation is done; if it fails, the parent ends this process."""
    while not run.data.exists():
        time.sleep(0.02)


def main() -> None:
    """Train; leave a fault behind if it fails."""
    die_with_parent()
    run, rank = RunDir(Path(sys.argv[1])), int(os.environ["RANK"])
    own_log(run, rank)
    (run.pids / str(os.getpid())).touch()
    try:
        asked = request.read(run.request)
        if asked.experiment.zero.stage == 0:
            # accelerate and transformers import DeepSpeed wherever it is installed, eight seconds for nothing.
            sys.modules["deepspeed"] = None  # type: ignore[assignment]
        from sft_exp.train import train

        train(asked, run)
    except BaseException as error:
        faults.write(run, f"rank{rank}", error)
        raise


if __name__ == "__main__":
    main()
