"""What the probes leave in the run folder, written by rank 0.

probes/base.json       metrics and scores of step 0
probes/answers.jsonl   the table of answers (`table`)
probes/base/           log-probabilities of the base on general text, where no adapter can be switched off
probes/added_rows.pt   rows of added tokens as they were before training
behaviour.json         the verdict
"""

from pathlib import Path

from sft_exp.probes import table
from sft_exp.probes.session import Look, Session
from sft_exp.rundir import RunDir


def base_file(run: RunDir) -> Path:
    """Metrics and scores of step 0."""
    return run.probes / "base.json"


def rows_file(run: RunDir) -> Path:
    """Rows of added tokens before training."""
    return run.probes / "added_rows.pt"


def add_answers(run: RunDir, step: int, session: Session, look: Look) -> None:
    """Append the answers of one look to the table."""
    found = [
        ("probe", prompt.id, prompt.text, "", answer)
        for prompt, answer in zip(session.prompts, look.answers, strict=True)
    ]
    for name, answers in look.scored.items():
        texts = zip(session.prompt_text(name), session.reference(name), answers, strict=True)
        found += [(name, f"{name}-{at}", *row) for at, row in enumerate(texts)]
    table.add(run, [(step, *row, answer.text, answer.ended, len(answer.ids)) for *row, answer in found])
