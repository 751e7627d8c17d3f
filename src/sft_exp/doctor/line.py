"""One line of the report: a state, what was found, what to do."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """How a check ended; `skip` says that it could not be made here, or that the run does not need it."""

    ok = "ok"
    warn = "warn"
    fail = "fail"
    skip = "skip"


@dataclass(frozen=True, kw_only=True)
class Line:
    """What one check has to say."""

    name: str
    state: State
    found: str
    advice: str = ""
    """What to do; empty where nothing has to be done."""


def ok(name: str, found: str) -> Line:
    """Nothing to do."""
    return Line(name=name, state=State.ok, found=found)


def skip(name: str, found: str) -> Line:
    """Not checked; `found` says why."""
    return Line(name=name, state=State.skip, found=found)


def warn(name: str, found: str, advice: str) -> Line:
    """The run works, slower or other than its user may think."""
    return Line(name=name, state=State.warn, found=found, advice=advice)


def fail(name: str, found: str, advice: str) -> Line:
    """The run cannot work."""
    return Line(name=name, state=State.fail, found=found, advice=advice)


def told(name: str, sentences: Iterable[str], state: State = State.fail) -> list[Line]:
    """One line for each sentence of a rule, which the run itself would show too.

    A rule's sentence says what and which value, then, after its last colon, what to do.
    """
    lines = []
    for sentence in sentences:
        what, _, advice = sentence.removesuffix(".").rpartition(": ")
        lines.append(Line(name=name, state=state, found=what or advice, advice=advice if what else ""))
    return lines


def judged(name: str, sentences: Iterable[str], found: str, state: State = State.fail) -> list[Line]:
    """The lines of `told`, or that all is well and what was `found`."""
    return told(name, sentences, state) or [ok(name, found)]
