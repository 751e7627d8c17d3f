"""Which runs are meant: run folders, sweep folders, their names below `outputs`, or a filter of MLflow."""

import re
from collections.abc import Sequence
from pathlib import Path

from sft_exp import rundir, tracking_store
from sft_exp.errors import ConfigError
from sft_exp.named import folders
from sft_exp.schema import Tracking

FILTER = re.compile(r"\s*(params|metrics|tags|attributes)\.")
"""How a filter of MLflow begins, such as `params.train.learning_rate = '0.0001'`."""


def runs(targets: Sequence[str], outputs: Path, tracking: Tracking) -> list[Path]:
    """Run folders in the order given, each once. Raises ConfigError with a sentence for each target that is none."""
    found: list[Path] = []
    problems: list[str] = []
    for target in targets:
        try:
            found += _filtered(target, tracking) if FILTER.match(target) else _below(_folder(target, outputs))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    return list(dict.fromkeys(path.resolve() for path in found))


def _folder(target: str, outputs: Path) -> Path:
    """A path as typed, or the only folder of that name below `outputs`."""
    typed = Path(target).expanduser()
    if typed.is_dir():
        return typed
    named = folders(target, outputs)
    if len(named) == 1:
        return named[0]
    if named:
        raise ConfigError(f"{target} names {len(named)} folders below {outputs}: give one path, such as {named[-1]}.")
    raise ConfigError(
        f"{target} is no folder and no run below {outputs}: give run or sweep folders, or a filter of MLflow such as "
        "\"params.adapter.kind = 'lora'\"."
    )


def _below(folder: Path) -> list[Path]:
    """The folder itself if it is a run, the jobs of a sweep that have started, or all runs of a day."""
    if (folder / "request.json").is_file():
        return [folder]
    if (folder / "sweep.json").is_file():
        jobs = rundir.read_json(folder / "sweep.json")["jobs"]
        started = [Path(job["folder"]) for job in jobs]
        # A sweep that was moved still knows its jobs by name.
        here = [path if path.is_dir() else folder / path.name for path in started]
        if found := [path for path in here if (path / "request.json").is_file()]:
            return found
        raise ConfigError(f"{folder} is a sweep of which no job has started: wait, or give another.")
    if found := sorted(path.parent for path in folder.glob("*/request.json")):
        return found
    raise ConfigError(f"{folder} holds no run (no request.json in it or below): give a run or sweep folder.")


def _filtered(condition: str, tracking: Tracking) -> list[Path]:
    """Folders of the runs that MLflow finds."""
    if problem := tracking_store.unreachable(tracking) or tracking_store.absent(tracking):
        raise ConfigError(problem)
    from mlflow.exceptions import MlflowException

    client, experiment = tracking_store.client(tracking)
    try:
        found = client.search_runs([experiment], filter_string=condition, order_by=["attributes.start_time ASC"])
    except MlflowException as error:
        raise ConfigError(f"MLflow does not take the filter {condition!r}: {error.message}") from error
    folders = [Path(run.data.tags["run_folder"]) for run in found if "run_folder" in run.data.tags]
    if here := [path for path in folders if (path / "request.json").is_file()]:
        return here
    raise ConfigError(
        f"the filter {condition!r} finds {len(found)} runs in experiment {tracking.experiment} at {tracking.uri}, and "
        "no run folder of them is here."
    )
