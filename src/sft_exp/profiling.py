"""A few steps under torch's profiler: a trace for a viewer, and one screen of what takes the time."""

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import TrainerCallback

from sft_exp.rundir import RunDir

WAIT = 8
"""Steps before the first that is watched: compilation, allocation and a cold loader are not what a run is made of."""
STEPS = 3
"""Steps that are watched; a trace of a 0.5B model grows by about 10 MB with each."""
ROWS = 25
"""Lines of the summary."""


class Profile(TrainerCallback):  # type: ignore[misc]
    """Watches `STEPS` steps of rank 0 and writes `profile.json.gz` and `profile.txt` into the run folder."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.first = 0
        self.profiler: profile | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.first = max(state.global_step, min(state.global_step + WAIT, state.max_steps - STEPS))

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero and state.global_step == self.first:
            card = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
            self.profiler = profile(activities=[ProfilerActivity.CPU, *card])
            self.profiler.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.profiler is None or state.global_step < min(self.first + STEPS, state.max_steps):
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.profiler.stop()
        self.profiler.export_chrome_trace(str(self.run.trace))
        self.run.profile.write_text(summary(self.profiler), encoding="utf-8")
        self.profiler = None


def summary(profiler: profile) -> str:
    """Operations by the time that they themselves took, on the card if there is one."""
    by = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    table: str = profiler.key_averages().table(sort_by=by, row_limit=ROWS, max_name_column_width=70)
    return f"{STEPS} steps; open profile.json.gz in https://ui.perfetto.dev for all of it\n{table}\n"
