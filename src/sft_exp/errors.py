"""Errors that a user sees.

SftExpError            one sentence, no traceback
 +- ConfigError        the user's mistake: exit code 2
 +- RunFailed          a started run ended badly: exit code 1
 +- RunStopped         a signal ended the run: exit code 128 + signal
     +- RunPruned      the search of a sweep gave the run up
"""

import sys
from typing import NoReturn


class SftExpError(Exception):
    """Base of all errors shown as one sentence: what, which value, what to do instead."""

    exit_code = 1


class ConfigError(SftExpError):
    """The request cannot be run; holds every problem that was found, so that all can be mended at once."""

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class RunFailed(SftExpError):
    """Training was started and did not finish."""


class RunStopped(SftExpError):
    """The run was ended by a signal."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class RunPruned(RunStopped):
    """The search that a run belongs to has given it up: its evaluations are worse than those of earlier trials."""


def report(error: SftExpError) -> NoReturn:
    """Print each sentence and exit with the error's code."""
    for line in str(error).split("\n"):
        print(f"sft_exp: {line}", file=sys.stderr)
    sys.exit(error.exit_code)
