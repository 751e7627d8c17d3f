"""Training in this process, on a few conversations."""

import json
import os
from pathlib import Path

from accelerate.state import AcceleratorState

from composing import NO_CARDS, compose
from sft_exp import launch, rundir
from sft_exp.prepare import prepare_run
from sft_exp.resolve import resolve
from sft_exp.rundir import RunDir


def train(tmp_path: Path, *overrides: str, conversations: int = 22, answer: str = "It is %d. ") -> RunDir:
    """Train in this process on numbered conversations, of which every step is logged."""
    from sft_exp import train

    line = '{"prompt": "%d + 1", "completion": "%s"}\n'
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(line % (at, answer % (at + 1) * (1 + at % 5)) for at in range(conversations)))
    asked = compose(
        "model=tiny", "dataset=jsonl", f"dataset.path={data}", "dataset.eval_fraction=0", "hw=cpu", "tracking=none",
        "train.global_batch=8", "train.logging_steps=1", f"outputs={tmp_path}/outputs", *overrides,
    )  # fmt: skip
    asked.experiment = resolve(asked.experiment, NO_CARDS)
    before = dict(os.environ)
    os.environ |= launch.added(asked.experiment, os.environ, launch.free_port())
    AcceleratorState._reset_state(reset_partial_state=True)  # what an earlier run has left in this process
    run = rundir.create(asked)
    try:
        prepare_run(run)
        train.train(asked, run)
    finally:
        os.environ.clear()
        os.environ.update(before)
    return run


def logged(run: RunDir, key: str = "train/loss") -> list[float]:
    rows = map(json.loads, run.metrics.read_text().splitlines())
    return [float(row[key]) for row in rows if key in row]
