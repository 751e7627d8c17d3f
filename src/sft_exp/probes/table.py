"""The table of answers over the steps, `probes/answers.jsonl`: one row for each answer. Standard library only."""

import json
from pathlib import Path
from typing import Any

from sft_exp import rundir
from sft_exp.rundir import RunDir

COLUMNS = ("step", "set", "id", "prompt", "reference", "answer", "ended", "tokens")
"""`set` is probe, eval or test; `reference` is empty for probes; `ended`: the model ended the answer by itself."""


def file(run: RunDir) -> Path:
    """Where it is."""
    return run.probes / "answers.jsonl"


def read(run: RunDir) -> list[dict[str, Any]]:
    """All rows; a line that is still being written is left out."""
    if not file(run).exists():
        return []
    lines = file(run).read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def add(run: RunDir, rows: list[tuple[Any, ...]]) -> None:
    """Append rows with the values of `COLUMNS`."""
    with file(run).open("a", encoding="utf-8") as target:
        for row in rows:
            target.write(json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False) + "\n")


def forget_after(run: RunDir, step: int) -> None:
    """Take back the rows of steps that a resumed run makes again."""
    if file(run).exists():
        kept = [row for row in read(run) if row["step"] <= step]
        rundir.write_text(file(run), "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept))
