"""Which finished run a user means, and the model that it left. Standard library only."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sft_exp import request, rundir
from sft_exp.errors import ConfigError
from sft_exp.named import folders
from sft_exp.rundir import RunDir

OUTPUTS = Path("outputs")
"""Where runs are looked for by their name."""
MODEL_FILES = ("config.json", "adapter_config.json")
"""One of these is in a folder that holds a model or an adapter."""


def find(text: str) -> RunDir:
    """The run that `text` names: a run folder, its model folder, or its name below outputs/.

    Raises ConfigError where there is none, or where it is not finished or has no model.
    """
    path = Path(text).expanduser()
    for folder in (path, path.parent if path.name == "model" else path):
        if (folder / "request.json").is_file():
            return _complete(RunDir(folder))
    if path.is_dir():
        raise ConfigError(_no_run(path))
    named = [folder for folder in folders(text, OUTPUTS) if RunDir(folder).request.is_file()]
    if not named:
        raise ConfigError(f"{text} is no run folder, and no run below {OUTPUTS}/ has this name: {_newest()}.")
    if len(named) > 1:
        raise ConfigError(f"{text} names {len(named)} runs: give the folder of one, such as {named[-1]}.")
    return _complete(RunDir(named[0]))


def behaviour(run: RunDir) -> dict[str, Any]:
    """`verdict`, `reasons` and `metrics` of the run's answers; empty where they were not judged."""
    return rundir.read_json(run.behaviour) if run.behaviour.is_file() else {}


def _complete(run: RunDir) -> RunDir:
    """The run itself, if it has come to its end and left a model."""
    try:
        request.read(run.request)
    except (TypeError, ValueError, LookupError) as error:
        raise ConfigError(f"{run.request} cannot be read ({error}): use the version that made it.") from error
    if not run.result.is_file():
        state = rundir.read_json(run.status)["state"] if run.status.is_file() else "not started"
        way = f"continue it with resume={run.path}" if run.newest_checkpoint() else "train again"
        if state == "running":  # killed with SIGKILL it says so too
            way = f"wait for its end, or, if it was killed, {way}"
        raise ConfigError(f"{run.path} is not finished ({state}): {way}.")
    if not any((run.model / name).is_file() for name in MODEL_FILES):
        raise ConfigError(
            f"{run.path} has no model: model/ in it does not hold {' or '.join(MODEL_FILES)}; train again."
        )
    return run


def _no_run(folder: Path) -> str:
    """One sentence on a folder that is not that of a run."""
    if inner := sorted(file.parent for file in folder.glob("*/request.json")):
        return f"{folder} holds {len(inner)} runs: give one of them, such as {inner[-1]}."
    return f"{folder} is no run folder (it has no request.json): {_newest()}."


def _folders() -> Iterator[Path]:
    """Run folders below outputs/, jobs of sweeps included, oldest first."""
    found = [file.parent for depth in ("*/*", "*/*/*") for file in OUTPUTS.glob(f"{depth}/request.json")]
    yield from sorted(found)


def _newest() -> str:
    """What to give instead."""
    finished = [folder for folder in _folders() if RunDir(folder).result.is_file() and RunDir(folder).model.is_dir()]
    return f"give one such as {finished[-1]}" if finished else "give a run folder, or train first"
