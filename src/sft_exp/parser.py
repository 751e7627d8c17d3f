"""Arguments of the commands about a run that is there, whose mistakes are told like all others."""

import argparse
from typing import NoReturn

from sft_exp.errors import ConfigError

PROGRAM = "python -m sft_exp"


class Parser(argparse.ArgumentParser):
    """The parser of one command; a mistake raises ConfigError, where argparse would print its usage and exit."""

    def __init__(self, command: str, description: str | None, epilog: str | None = None) -> None:
        super().__init__(prog=f"{PROGRAM} {command}", description=description, epilog=epilog, allow_abbrev=False)
        self.command = command

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.command}: {message}; see {self.prog} --help.")
