"""Answers to probes as a table in MLflow, which its evaluation view shows side by side for several runs."""

from typing import TYPE_CHECKING, Any

from sft_exp.probes import table
from sft_exp.rundir import RunDir

if TYPE_CHECKING:
    from mlflow import MlflowClient

ARTIFACT = "probes/answers.json"
"""Name of the table; each call appends to it."""


def send(made: "MlflowClient", run_id: str, run: RunDir, *, after: int, up_to: int) -> None:
    """Append the answers of the steps above `after` and not above `up_to`, which are whole by then."""
    rows = [row for row in table.read(run) if after < row["step"] <= up_to]
    if rows:
        columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in table.COLUMNS}
        made.log_table(run_id, data=columns, artifact_file=ARTIFACT)
