"""Run folders as a run leaves them, written by hand with chosen numbers."""

import json
from pathlib import Path
from typing import Any

from composing import NO_CARDS, compose
from sft_exp import rundir
from sft_exp.compare import facts
from sft_exp.compare.facts import Facts
from sft_exp.probes import table
from sft_exp.resolve import resolve
from sft_exp.rundir import RunDir

VERSIONS = {"torch": "2.13.0", "trl": "1.16.0"}


def run_folder(
    folder: Path, *overrides: str, eval_loss: float = 2.0, fingerprint: str = "a1", tokens: int = 1000,
    state: str = "finished", commit: str = "c0ffee", versions: dict[str, str] = VERSIONS, diff: str = "",
    metrics: dict[str, float] | None = None, parent: str | None = None, answer: str = "4", verdict: str = "healthy",
) -> Facts:  # fmt: skip
    """A run of three logged steps and one evaluation."""
    asked = compose("model=tiny", "hw=cpu", "tracking=none", f"outputs={folder.parent}", *overrides)
    asked.experiment = resolve(asked.experiment, NO_CARDS)
    asked.folder, asked.parent_run_id = str(folder), parent
    run = rundir.create(asked)
    record = {"git": {"commit": commit}, "versions": versions, "machine": {"cores": 2, "cards": [], "driver": None}}
    rundir.write_json(run.record, record)
    rundir.write_text(run.diff, diff)
    rundir.write_json(run.data, {"fingerprint": fingerprint})
    rundir.write_json(run.status, {"state": state})
    rundir.write_json(run.samples, {"samples": [{"prompt": "2+2?", "before": "", "after": answer}]})
    reasons = [] if verdict == "healthy" else [f"{verdict} (3% of answers end)"]
    rundir.write_json(run.behaviour, {"verdict": "degenerate" if reasons else "healthy", "reasons": reasons})
    run.probes.mkdir(exist_ok=True)
    for step, said, ended in ((0, "five", True), (3, answer, verdict == "healthy")):
        table.add(
            run, [(step, kind, f"{kind}-1", f"{kind} 2+2?", "four", said, ended, 1) for kind in ("probe", "eval")]
        )
    rows: list[dict[str, Any]] = [
        {"step": step, "train/loss": eval_loss + 1 / step, "train/tokens_seen": tokens * step // 3,
         "perf/tokens_per_second": 100.0 * step}
        for step in (1, 2, 3)
    ]  # fmt: skip
    rows.append({"step": 3, "eval/loss": eval_loss, **(metrics or {})})
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return facts.read(RunDir(folder).path)
