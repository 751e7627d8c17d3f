"""`resume=RUN_FOLDER`: go on from the newest checkpoint, in the same folder and the same MLflow run."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

from sft_exp import check, rundir
from sft_exp.errors import ConfigError
from sft_exp.machine import Machine
from sft_exp.request import Request, from_plain, read, to_plain
from sft_exp.rundir import RunDir
from sft_exp.schema import Experiment

CHANGEABLE = (
    "train.max_steps", "train.epochs", "train.logging_steps", "train.eval_steps", "train.save_steps",
    "train.save_total_limit", "train.early_stopping", "train.sample_prompts", "hw.devices", "train.sample_tokens",
)  # fmt: skip
"""What may differ from the first start; everything else would make the steps before and after incomparable."""


BEFORE = ".before"
"""Folder with the records of a resumed run as they were, until it is known that it trains."""
RECORDS = (
    "request.json", "config.json", "command.json", "record.json", "git.diff", "freeze.txt", "metrics.jsonl",
    "result.json", "behaviour.json", "status.json", "data_report.json",
)  # fmt: skip
"""What a resume changes before its data is accepted. The data report comes last: it is the mark of that."""


def reopen(request: Request, machine: Machine) -> tuple[Request, RunDir]:
    """The recorded request with the changes that a resumed run may have, and its folder made ready."""
    folder = _folder(request)
    run = RunDir(folder)
    _recover(run)
    recorded = changed(request)
    experiment = recorded.experiment
    findings = check.check(experiment, machine)
    check.refuse(findings)
    checkpoint = run.newest_checkpoint()
    if checkpoint is None:
        raise ConfigError(
            f"resume={folder} has no checkpoint: start it anew with train.save_steps=N, which makes some."
        )
    _refuse_finished(run, experiment)
    _rewind(run, int(checkpoint.name.rpartition("-")[2]))
    experiment = dataclasses.replace(experiment, resume=str(run.path))
    again = dataclasses.replace(recorded, experiment=experiment, argv=request.argv, port=request.port)
    rundir.write_json(run.request, again)
    rundir.write_json(run.config, experiment)
    return again, run


def changed(request: Request) -> Request:
    """The recorded request with the changes that a resumed run may have; nothing is written."""
    recorded = read(_folder(request) / "request.json")
    values = {key: _value(request.experiment, key) for key in _changes(request)}
    return dataclasses.replace(recorded, experiment=apply(recorded.experiment, values))


def _folder(request: Request) -> Path:
    folder = Path(request.experiment.resume or "").expanduser()
    if not (folder / "request.json").is_file():
        raise ConfigError(f"resume={folder} is no run folder (it has no request.json): give one from outputs/.")
    return folder


def _changes(request: Request) -> list[str]:
    keys = [override.partition("=")[0].lstrip("+") for override in request.overrides]
    refused = [key for key in keys if key != "resume" and key not in CHANGEABLE]
    if refused:
        raise ConfigError(
            f"{refused[0]} cannot change when a run is resumed (it takes everything from its folder): "
            f"leave it out, or start a new run; what may change: {', '.join(CHANGEABLE)}."
        )
    return [key for key in keys if key != "resume"]


def _value(experiment: Experiment, key: str) -> Any:
    value: Any = experiment
    for part in key.split("."):
        value = getattr(value, part)
    return value


def apply(experiment: Experiment, changes: dict[str, Any]) -> Experiment:
    """A copy of the experiment with dotted keys changed."""
    plain = to_plain(experiment)
    for key, value in changes.items():
        group, _, field = key.partition(".")
        plain[group][field] = value
    return from_plain(Experiment, plain)


def _refuse_finished(run: RunDir, experiment: Experiment) -> None:
    if not run.result.exists():
        return
    result = rundir.read_json(run.result)
    wanted = experiment.train.max_steps
    if result["steps"] >= (wanted or result["total_steps"]):
        raise ConfigError(
            f"resume={run.path} has finished its {result['steps']} steps: add train.max_steps=N to train further."
        )


def _rewind(run: RunDir, step: int) -> None:
    """Forget what came after the checkpoint: metrics, faults and the mark of an earlier end, with a copy kept."""
    _keep(run)
    run.data.unlink(missing_ok=True)  # first: until it is there again, the copy is what counts
    if run.metrics.exists():
        lines = run.metrics.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if _step_of(line) <= step]
        rundir.write_text(run.metrics, "".join(f"{line}\n" for line in kept))
    for folder in (run.faults, run.pids):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    for file in (run.result, run.behaviour, run.notice):
        file.unlink(missing_ok=True)


def _keep(run: RunDir) -> None:
    """Copy the records; the copy appears all at once, so that a kill leaves no part of it."""
    before, unfinished = run.path / BEFORE, run.path / f"{BEFORE}.unfinished"
    for folder in (before, unfinished):
        shutil.rmtree(folder, ignore_errors=True)
    unfinished.mkdir()
    for name in RECORDS:
        if (run.path / name).exists():
            shutil.copy2(run.path / name, unfinished)
    unfinished.rename(before)


def _recover(run: RunDir) -> None:
    """Put back what a resume has set aside that was killed before its data was accepted, so before it trained."""
    if (run.path / BEFORE).is_dir() and not run.data.exists():
        restore(run, trained=False)


def restore(run: RunDir, *, trained: bool) -> bool:
    """Say whether this run was resumed; if it was refused before it trained, put its records back as they were."""
    before = run.path / BEFORE
    if not before.is_dir():
        return False
    if not trained:
        for name in RECORDS:
            if (before / name).exists():
                shutil.copy2(before / name, run.path)
    shutil.rmtree(before)
    return True


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except ValueError:  # a line cut off by a kill
        return float("inf")
