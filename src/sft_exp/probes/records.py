"""What the probes leave in the run folder, written by rank 0.

probes/base.json       metrics and scores of step 0
probes/answers.jsonl   one row for each answer: step, set, id, prompt, reference, answer, ended, tokens
probes/base/           log-probabilities of the base on general text, where no adapter can be switched off
behaviour.json         the verdict
"""

import json
from pathlib import Path
from typing import Any

from sft_exp import rundir
from sft_exp.probes.session import Look, Session
from sft_exp.rundir import RunDir

COLUMNS = ("step", "set", "id", "prompt", "reference", "answer", "ended", "tokens")
"""Columns of the table of answers."""


def base_file(run: RunDir) -> Path:
    """Metrics and scores of step 0."""
    return run.probes / "base.json"


def answers_file(run: RunDir) -> Path:
    """Answers over the steps."""
    return run.probes / "answers.jsonl"


def forget_after(run: RunDir, step: int) -> None:
    """Take back the answers of steps that a resumed run makes again."""
    if answers_file(run).exists():
        kept = [row for row in read_answers(run) if row["step"] <= step]
        rundir.write_text(answers_file(run), "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept))


def read_answers(run: RunDir) -> list[dict[str, Any]]:
    """All rows of the table of answers; a line that is still being written is left out."""
    if not answers_file(run).exists():
        return []
    lines = answers_file(run).read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def add_answers(run: RunDir, step: int, session: Session, look: Look) -> None:
    """Append the answers of one look."""
    rows = [
        (prompt.id, "probe", prompt.text, "", answer)
        for prompt, answer in zip(session.prompts, look.answers, strict=True)
    ]
    for name, answers in look.scored.items():
        texts = zip(session.prompt_text(name), session.reference(name), answers, strict=True)
        rows += [(f"{name}-{at}", name, *row) for at, row in enumerate(texts)]
    with answers_file(run).open("a", encoding="utf-8") as file:
        for key, kind, prompt, reference, answer in rows:
            values = (step, kind, key, prompt, reference, answer.text, answer.ended, len(answer.ids))
            file.write(json.dumps(dict(zip(COLUMNS, values, strict=True)), ensure_ascii=False) + "\n")
