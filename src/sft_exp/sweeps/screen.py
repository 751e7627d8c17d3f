"""The sweep on the terminal: one table that is drawn again in place, or plain lines where nobody looks on."""

import contextlib
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sft_exp.progress import show
from sft_exp.sweeps.job import Job
from sft_exp.sweeps.view import HEAD, View

REDRAW_S = 0.5
LINE_S = 10.0
"""Seconds between two plain lines about one job."""
SHOWN = 3
"""Jobs over and jobs waiting that the live table keeps beside the running ones."""

LONGEST_TITLE = 120


class Screen:
    """Shows how the jobs do."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self._lines = 0
        self._drawn = 0.0
        self._told: dict[int, float] = {}

    def tell(self, text: str) -> None:
        """One line that stays; the table is drawn below it."""
        self._clear()
        show(text)

    def update(self, jobs: Sequence[Job], views: dict[int, View]) -> None:
        """Draw the table anew, or tell of running jobs that have a new step."""
        now = time.monotonic()
        if not self.live:
            for number, view in views.items():
                if view.step and now - self._told.setdefault(number, now) >= LINE_S:
                    self._told[number] = now
                    show(f"job {number}  {line(view)}")
        elif now - self._drawn >= REDRAW_S:
            self._drawn = now
            self._clear()
            width, height = shutil.get_terminal_size()
            drawn = table(shown(jobs, max(1, height - 4)), views, width, shared_words(jobs))
            print("\n".join(drawn), flush=True)
            self._lines = len(drawn)

    def _clear(self) -> None:
        if self._lines:
            print(f"\033[{self._lines}A\033[J", end="")
            self._lines = 0


def line(view: View) -> str:
    """What is known of a running job in one line."""
    return "  ".join(f"{name} {cell}" for name, cell in zip(HEAD, view.cells(), strict=True) if cell)


def shown(jobs: Sequence[Job], room: int) -> list[Job]:
    """Running jobs, with the newest that are over and the next that wait, as many as fit."""
    running = [job for job in jobs if job.state == "running"]
    others = [job for job in jobs if job.over][-SHOWN:] + [job for job in jobs if job.state == "waiting"][:SHOWN]
    chosen = {job.number for job in [*running, *others][:room]}
    return [job for job in jobs if job.number in chosen]


def shared_words(jobs: Sequence[Job]) -> set[str]:
    """Overrides that all jobs have; of a single job none."""
    return set.intersection(*(set(job.overrides.split()) for job in jobs)) if len(jobs) > 1 else set()


def question(job: Job, common: set[str]) -> str:
    """The overrides by which the job differs from others, without the quotes that Hydra needs around a digit."""
    words = [word for word in job.overrides.split() if word not in common]
    return " ".join(re.sub(r"^(zero)='(\d)'$", r"\1=\2", word) for word in words)


def title(job: Job, jobs: Sequence[Job]) -> str:
    """Name of a job's run in MLflow: its number and what sets it apart, short since the UI's column is narrow."""
    words = question(job, shared_words(jobs)).split()
    return " ".join([str(job.number), *map(_short, words)])[:LONGEST_TITLE]


def _short(word: str) -> str:
    """`train.seed=1` -> `seed=1`, `adapter=lora` -> `lora`, a search's numbers with three digits; `zero=2` stays."""
    key, _, value = word.partition("=")
    with contextlib.suppress(ValueError):
        value = value if value.isdigit() else f"{float(value):.3g}"
    return value if "." not in key and value[:1].isalpha() else f"{key.rpartition('.')[2]}={value}"


def table(jobs: Sequence[Job], views: dict[int, View], width: int, common: set[str]) -> list[str]:
    """Rows of the live table, none longer than the terminal is wide."""
    rows: list[Sequence[str]] = [("job", "state", *HEAD, "overrides")]
    for job in jobs:
        cells = views[job.number].cells() if job.number in views else [""] * len(HEAD)
        rows.append((str(job.number), job.state, *cells, question(job, common)))
    return [text[: width - 1] for text in columns(rows)]


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Cells in columns that are as wide as their widest cell."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def closing(jobs: Sequence[Job], folder: Path) -> None:
    """The table at the end: how each job went, its losses, and why it failed."""
    show(f"\nsweep {folder}")
    common = shared_words(jobs)
    rows: list[Sequence[str]] = [("job", "state", "seconds", *HEAD[:-1], "overrides")]
    for job in jobs:
        view = View(job)
        view.update()
        rows.append((str(job.number), job.state, f"{job.seconds:.0f}", *view.cells()[:-1], question(job, common)))
    head, *lines = columns(rows)
    show(f"  {head}")
    for text, job in zip(lines, jobs, strict=True):
        show(f"  {text}")
        if job.reason:
            show(f"       {job.reason.splitlines()[0][:200]}")
