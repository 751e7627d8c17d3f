"""What a comparison knows of one run, all of it read from the run folder, of a finished or a living run."""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sft_exp import metrics, rundir
from sft_exp.probes import table
from sft_exp.request import flatten
from sft_exp.rundir import RunDir

NOT_RESULTS = ("train/epoch", "train/total_steps", "train/learning_rate", "train/loss_scale")
"""Logged values that say where a run is, not what came out."""
THROUGHPUT = "perf/tokens_per_second"
SEED = "train.seed"


@dataclasses.dataclass(frozen=True)
class Facts:
    """One run. Parts that a living or failed run has not written yet are empty."""

    run: RunDir
    request: dict[str, Any]
    config: dict[str, Any]
    """Resolved configuration by dotted keys."""
    record: dict[str, Any]
    data: dict[str, Any]
    result: dict[str, Any]
    status: dict[str, Any]
    behaviour: dict[str, Any]
    samples: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    """Logged metrics, in the order of steps."""

    @property
    def name(self) -> str:
        """Folder name."""
        return self.run.path.name

    @property
    def state(self) -> str:
        """As the run's parent recorded it, such as 'finished'."""
        return str(self.status.get("state", "unknown"))

    @functools.cached_property
    def typed(self) -> dict[str, str]:
        """Overrides by key, as they were typed; the later one counts."""
        words = [word.lstrip("+~").partition("=") for word in self.request.get("overrides", [])]
        return {key: value for key, _, value in words}

    def value(self, key: str) -> str:
        """Option of a config group, or resolved value of a dotted key, as text; empty where there is none."""
        choices = self.request.get("choices", {})
        if key in choices:
            return str(choices[key])
        found = self.config.get(key)
        return "" if found is None else str(found)

    @functools.cached_property
    def metrics(self) -> dict[str, float]:
        """Last logged value of each metric; the throughput's is the median, as its first values hold start-up costs."""
        last: dict[str, float] = {}
        for row in self.rows:
            last |= {key: float(value) for key, value in row.items() if "/" in key}  # also "nan", as it is written
        if "tokens_per_second" in self.result:
            last[THROUGHPUT] = float(self.result["tokens_per_second"])
        return {key: value for key, value in last.items() if key not in NOT_RESULTS}

    @property
    def tokens_seen(self) -> int | None:
        """Tokens trained on so far, padding not counted."""
        found = self.metrics.get("train/tokens_seen")
        return None if found is None else int(found)

    @functools.cached_property
    def answers(self) -> list[dict[str, Any]]:
        """Answers of the probes over the steps: the columns of `probes.table`."""
        return table.read(self.run)

    @property
    def judged(self) -> str:
        """The verdict on the run's behaviour with the names of its reasons; empty where there is none."""
        names = [reason.partition(" (")[0] for reason in self.behaviour.get("reasons", [])]
        return ", ".join(names) or str(self.behaviour.get("verdict", ""))

    def identity(self) -> dict[str, str]:
        """What should be equal wherever it is not the question."""
        diff = self.run.diff.read_text(encoding="utf-8", errors="replace") if self.run.diff.exists() else ""
        return identity(self.record, diff, self.data, self.config)


def identity(
    record: Mapping[str, Any], diff: str, data: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, str]:
    """Code, data, versions, machine and batch, each as text by its name."""
    git, machine = record.get("git", {}), record.get("machine", {})
    cards = [str(card.get("name")) for card in machine.get("cards", [])]
    return {
        "git commit": str(git.get("commit", "none")),
        "uncommitted changes": hashlib.sha256(diff.encode()).hexdigest()[:8] if diff.strip() else "none",
        "data fingerprint": str(data.get("fingerprint", "none")),
        **{f"version of {name}": str(found) for name, found in record.get("versions", {}).items()},
        "machine": ", ".join(cards) or f"{machine.get('cores')} CPU cores",
        "driver": str(machine.get("driver")),
        "ranks": str(config.get("hw.processes")),
        "global batch": str(config.get("train.global_batch")),
    }


def read(folder: Path) -> Facts:
    """Facts of the run in `folder`."""
    run = RunDir(folder)

    def record(path: Path) -> dict[str, Any]:
        return dict(rundir.read_json(path)) if path.is_file() else {}

    return Facts(
        run=run, request=record(run.request), config=flatten(record(run.config)), record=record(run.record),
        data=record(run.data), result=record(run.result), status=record(run.status),
        behaviour=record(run.path / "behaviour.json"), samples=record(run.samples).get("samples", []),
        rows=metrics.read_rows(run.metrics)[0],
    )  # fmt: skip
