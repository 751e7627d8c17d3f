"""Every path of a run, and records that are either whole or absent."""

import datetime
import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sft_exp import request as requests
from sft_exp.errors import ConfigError
from sft_exp.request import Request
from sft_exp.schema import Experiment


def slug(text: str) -> str:
    """A name that is safe as a file name and cannot leave its folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-")[:80] or "run"


def run_name(experiment: Experiment) -> str:
    """Readable name with a part from the system's random source, which no seed makes equal to another's."""
    model = experiment.model.name or (experiment.model.path or "model").rstrip("/").rpartition("/")[2]
    name = experiment.name or f"{model}-{experiment.adapter.kind.value}-z{experiment.zero.stage}"
    return f"{slug(name)}-{secrets.token_hex(3)}"


@dataclass(frozen=True)
class RunDir:
    """Paths of one run folder."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path).resolve())

    @property
    def name(self) -> str:
        """Run name: the folder's name without its time."""
        return self.path.name.partition("-")[2] or self.path.name

    @property
    def request(self) -> Path:
        """Resolved request: what the ranks read."""
        return self.path / "request.json"

    @property
    def config(self) -> Path:
        """Resolved configuration, for people and for `resume`."""
        return self.path / "config.json"

    @property
    def command(self) -> Path:
        """Command, environment and DeepSpeed configuration of the ranks."""
        return self.path / "command.json"

    @property
    def record(self) -> Path:
        """Git, versions and hardware."""
        return self.path / "record.json"

    @property
    def diff(self) -> Path:
        """Uncommitted changes of the code."""
        return self.path / "git.diff"

    @property
    def freeze(self) -> Path:
        """Installed packages, as pip freeze lists them."""
        return self.path / "freeze.txt"

    @property
    def data(self) -> Path:
        """What became of the rows; its presence tells the ranks that the data is ready."""
        return self.path / "data_report.json"

    @property
    def report_pages(self) -> list[Path]:
        """The same for people: as a page and as text."""
        return [self.data.with_suffix(".html"), self.data.with_suffix(".txt")]

    @property
    def metrics(self) -> Path:
        """Metrics, one JSON object per line."""
        return self.path / "metrics.jsonl"

    @property
    def rows(self) -> Path:
        """Rows and losses of each step, one file per rank (`rowlog`)."""
        return self.path / "rows"

    @property
    def samples(self) -> Path:
        """Answers before and after training."""
        return self.path / "samples.json"

    @property
    def result(self) -> Path:
        """Summary written by rank 0 at the end."""
        return self.path / "result.json"

    @property
    def behaviour(self) -> Path:
        """What the answers were judged to be."""
        return self.path / "behaviour.json"

    @property
    def probes(self) -> Path:
        """Answers to the probes over the steps, and what they are compared with."""
        return self.path / "probes"

    @property
    def profile(self) -> Path:
        """What took the time in a few steps, where `train.profile` asked."""
        return self.path / "profile.txt"

    @property
    def trace(self) -> Path:
        """The same, event by event, for a viewer."""
        return self.path / "profile.json.gz"

    @property
    def status(self) -> Path:
        """How far the run is, as its parent sees it."""
        return self.path / "status.json"

    @property
    def notice(self) -> Path:
        """One line that a rank wants shown while it waits for something."""
        return self.path / "notice.txt"

    @property
    def tracking(self) -> Path:
        """Tracking store and run id."""
        return self.path / "tracking.json"

    @property
    def logs(self) -> Path:
        """One log per rank, one for the preparation and one for the launcher."""
        return self.path / "logs"

    @property
    def faults(self) -> Path:
        """One JSON file per process that failed: time, traceback and whether it was the user's mistake."""
        return self.path / "faults"

    @property
    def pids(self) -> Path:
        """One file per living rank."""
        return self.path / "pids"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints, as transformers names them."""
        return self.path / "checkpoints"

    @property
    def stream(self) -> Path:
        """What became of rows that were read while training."""
        return self.path / "stream.json"

    @property
    def model(self) -> Path:
        """Final model with its tokenizer."""
        return self.path / "model"

    def newest_checkpoint(self) -> Path | None:
        """Checkpoint with the highest step that holds a trainer state, which is written last."""
        found = [
            (int(path.parent.name.rpartition("-")[2]), path.parent)
            for path in self.checkpoints.glob("checkpoint-*/trainer_state.json")
        ]
        return max(found)[1] if found else None


def write_text(path: Path, text: str) -> None:
    """Write under a temporary name, then rename: a reader sees all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write a record; non-finite numbers become the strings that `float` reads."""
    write_text(path, json.dumps(finite(requests.to_plain(value)), indent=2, ensure_ascii=False) + "\n")


def finite(value: Any) -> Any:
    """NaN and infinities as strings, since JSON has no word for them."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value


def read_json(path: Path) -> dict[str, Any]:
    """Read a record."""
    value = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(value, dict)
    return value


def dated(outputs: str | Path, name: str) -> Path:
    """`outputs/<date>/<time>-<name>`: where everything that a command leaves is put. Not made yet."""
    now = datetime.datetime.now()
    return Path(outputs) / f"{now:%Y-%m-%d}" / f"{now:%H%M%S_%f}-{name}"


def planned(experiment: Experiment) -> Path:
    """The folder that a run would have, with words for what is not known before it starts."""
    return Path(experiment.outputs) / "DATE" / f"TIME-{run_name(experiment)[:-7]}-ID"


def data_folder(experiment: Experiment) -> Path:
    """Make `outputs/<date>/<time>-data-<name>` for a report without a run."""
    dataset = experiment.dataset
    first = dataset.path[0] if isinstance(dataset.path, list) else dataset.path
    name = slug(dataset.name or "-".join(dataset.mixture) or Path(str(first)).stem)
    folder = dated(experiment.outputs, f"data-{name}")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {folder}: {error.strerror}; set outputs=FOLDER.") from error
    return folder


def create(request: Request) -> RunDir:
    """Make `outputs/<date>/<time>-<name>` and write the request into it."""
    experiment = request.experiment
    folder = Path(request.folder or dated(experiment.outputs, run_name(experiment)))
    try:
        folder.mkdir(parents=True)
        run = RunDir(folder)
        for part in (run.logs, run.faults, run.pids):
            part.mkdir()
        write_json(run.request, request)
        write_json(run.config, experiment)
    except OSError as error:
        raise ConfigError(
            f"cannot make the run folder {folder}: {error.strerror}; set outputs=FOLDER to a place with room."
        ) from error
    return run
