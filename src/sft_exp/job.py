"""`python -m sft_exp.job REQUEST.json`: one job of a sweep, in a process of its own."""

import sys
from pathlib import Path

from sft_exp import request
from sft_exp.errors import SftExpError, report
from sft_exp.run import run


def main() -> None:
    """Run the job; its exit code tells the sweep how it went."""
    try:
        run(request.read(Path(sys.argv[1])))
    except SftExpError as error:
        report(error)


if __name__ == "__main__":
    main()
