"""Training in this process, on a few conversations."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate.state import AcceleratorState

from composing import NO_CARDS, compose
from sft_exp import launch, rundir
from sft_exp.prepare import prepare_run
from sft_exp.request import Request, read
from sft_exp.resolve import resolve
from sft_exp.rundir import RunDir


def train(tmp_path: Path, *overrides: str, conversations: int = 22, answer: str = "It is %d. ") -> RunDir:
    """Train in this process on numbered conversations, of which every step is logged."""
    from sft_exp import train

    line = '{"prompt": "%d + 1", "completion": "%s"}\n'
    tmp_path.mkdir(exist_ok=True)
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(line % (at, answer % (at + 1) * (1 + at % 5)) for at in range(conversations)))
    asked = compose(
        "model=tiny", "dataset=jsonl", f"dataset.path={data}", "dataset.eval_fraction=0", "hw=cpu", "tracking=none",
        "train.global_batch=8", "train.logging_steps=1", f"outputs={tmp_path}/outputs", *overrides,
    )  # fmt: skip
    asked.experiment = resolve(asked.experiment, NO_CARDS)
    run = rundir.create(asked)
    with as_a_rank(asked):
        prepare_run(run)
        train.train(asked, run)
    return run


def go_on(run: RunDir) -> None:
    """Train on from the newest checkpoint of a run folder."""
    from sft_exp import train

    asked = read(run.request)
    with as_a_rank(asked):
        train.train(asked, run)


@contextmanager
def as_a_rank(asked: Request) -> Iterator[None]:
    """The environment of the only rank, and nothing of what an earlier run has left in this process."""
    before = dict(os.environ)
    os.environ |= launch.added(asked.experiment, os.environ, launch.free_port())
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def logged(run: RunDir, key: str = "train/loss") -> list[float]:
    rows = map(json.loads, run.metrics.read_text().splitlines())
    return [float(row[key]) for row in rows if key in row]
