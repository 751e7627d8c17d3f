"""Answers of different settings to one prompt, for side by side reading."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sft_exp.compare import effects
from sft_exp.compare.facts import Facts
from sft_exp.probes.prompts import spread

SHOWN = {"probe": 6, "eval": 4, "test": 2}
"""Prompts of each set of the probes' table that a page has room for."""


@dataclasses.dataclass(frozen=True)
class Question:
    """One prompt; `before` and `after` hold the answers by the name of a setting."""

    kind: str
    prompt: str
    reference: str
    before: Mapping[str, str]
    after: Mapping[str, str]

    @property
    def one_before(self) -> str | None:
        """What all said before training, if they agree."""
        return next(iter(self.before.values())) if len(set(self.before.values())) == 1 else None


def questions(runs: Sequence[Facts], factors: Sequence[str]) -> list[Question]:
    """`train.sample_prompts`, and some prompts of the probes, answered by the first run of each setting."""
    firsts = {" ".join(cell) or "the run": members[0] for cell, members in effects.cells(runs, factors).items()}
    return [*_samples(firsts), *(one for kind, count in SHOWN.items() for one in _probes(firsts, kind, count))]


def _samples(runs: Mapping[str, Facts]) -> list[Question]:
    prompts = dict.fromkeys(sample["prompt"] for run in runs.values() for sample in run.samples)
    found = []
    for prompt in prompts:
        said = {name: one for name, run in runs.items() for one in run.samples if one["prompt"] == prompt}
        before, after = ({name: one.get(key, "") for name, one in said.items()} for key in ("before", "after"))
        found.append(Question("sample", prompt, "", before, after))
    return found


def _probes(runs: Mapping[str, Facts], kind: str, count: int) -> list[Question]:
    """Prompts at equal distances among those of a set that all runs were asked."""
    asked = {name: _by_prompt(run.answers, kind) for name, run in runs.items()}
    asked = {name: rows for name, rows in asked.items() if rows}
    first = next(iter(asked.values()), {})
    shared = [prompt for prompt in first if all(prompt in rows for rows in asked.values())]
    return [
        _question(kind, prompt, {name: rows[prompt] for name, rows in asked.items()})
        for prompt in spread(shared, count)
    ]


def _by_prompt(rows: Sequence[dict[str, Any]], kind: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["set"] == kind:
            found.setdefault(row["prompt"], []).append(row)
    return found


def _question(kind: str, prompt: str, said: Mapping[str, Sequence[dict[str, Any]]]) -> Question:
    """The answers of the first and of the last step; a run that has one step only has no `after`."""
    reference = next(iter(said.values()))[0]["reference"] or ""
    before = {name: _text(rows[0]) for name, rows in said.items()}
    after = {name: _text(rows[-1]) if len(rows) > 1 else "" for name, rows in said.items()}
    return Question(kind, prompt, str(reference), before, after)


def _text(row: Mapping[str, Any]) -> str:
    """An answer, with a mark where it was cut off."""
    return str(row["answer"]) if row["ended"] else f"{row['answer']} [cut off]"
