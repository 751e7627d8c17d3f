"""`python -m sft_exp.job REQUEST.json`: one job of a sweep, in a process of its own."""

import fcntl
import signal
import sys
from pathlib import Path

from sft_exp import launch, request
from sft_exp.errors import SftExpError, report
from sft_exp.run import run


def main() -> None:
    """Run the job; its exit code tells the sweep how it went."""
    signal.signal(launch.PRUNE, signal.SIG_IGN)  # while it trains the run itself has a handler
    file = Path(sys.argv[1])
    try:
        with file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the same job of a sweep that was killed may still be ending
            run(request.read(file))
    except SftExpError as error:
        report(error)


if __name__ == "__main__":
    main()
