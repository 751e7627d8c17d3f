"""Everything that can be known to go wrong before anything is started, all at once.

A problem refuses the run; a warning is shown and recorded. Each is one sentence: what, which value, what to do instead.
"""

from dataclasses import dataclass

from sft_exp.errors import ConfigError
from sft_exp.machine import Machine
from sft_exp.rules import (
    adapter,
    blank,
    dataset,
    evaluation,
    hw,
    machine,
    memory,
    model,
    precision,
    tokens,
    tracking,
    train,
    warnings,
    zero,
)
from sft_exp.schema import Experiment


@dataclass(frozen=True)
class Findings:
    """What `check` found."""

    problems: list[str]
    warnings: list[str]


def check(experiment: Experiment, found: Machine, *, plan: bool = False) -> Findings:
    """Every problem and warning of a resolved experiment; `plan` leaves out what concerns only this machine."""
    rules = (blank, model, tokens, dataset, adapter, zero, hw, precision, train, tracking, evaluation)
    problems = [sentence for rule in rules for sentence in rule.problems(experiment)]
    if not plan:
        problems += machine.problems(experiment, found)
        # What is wrong otherwise may be why the plan is what it is.
        problems += [] if problems else memory.problems(experiment)
    noted = [*warnings.warnings(experiment), *tokens.warnings(experiment), *memory.warnings(experiment)]
    return Findings(problems, noted if plan else [*noted, *machine.warnings(experiment, found)])


def refuse(findings: Findings) -> None:
    """Raise all problems as one error."""
    if findings.problems:
        raise ConfigError(*findings.problems)
