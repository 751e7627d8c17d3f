"""What a person sees while a run is on: one line per logged step, answers before and after, a closing table."""

import contextlib
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from sft_exp import rundir
from sft_exp.request import Request
from sft_exp.rundir import RunDir
from sft_exp.tracking import Tracker


def show(text: str = "") -> None:
    """Print at once, also into a pipe."""
    print(text, flush=True)


class Progress:
    """The terminal's view of one run."""

    def __init__(self, request: Request, run: RunDir) -> None:
        self.request, self.run = request, run
        self.started = time.monotonic()
        self._first: tuple[float, int] | None = None
        self._seen: set[str] = set()

    def begin(self, argv: list[str]) -> None:
        """Say what is started."""
        experiment = self.request.experiment
        show(f"run      {self.run.path}")
        if experiment.resume and (checkpoint := self.run.newest_checkpoint()):
            if self.run.samples.exists():
                self._seen.add("before")  # the first start has shown these answers
            step = int(checkpoint.name.rpartition("-")[2])
            show(f"resume   continues at step {step + 1}, from {checkpoint.name}")
        show(
            f"training {experiment.model.name or experiment.model.path}, {experiment.adapter.kind.value}, "
            f"zero={experiment.zero.stage}, {experiment.train.precision.value}, "
            f"{experiment.hw.processes} x {experiment.hw.device.value}"
        )
        show(f"command  {shlex.join(argv)}")

    def show(self, rows: list[dict[str, Any]]) -> None:
        """Show new metric rows, and records that have appeared since."""
        self._notice()
        self._once("data", self._data)
        self._once("before", self._before)
        for row in rows:
            if "train/loss" in row:
                show(self._step(row))
            elif "eval/loss" in row or "test/loss" in row:
                show(self._eval(row))

    def _once(self, name: str, action: Any) -> None:
        if name not in self._seen and action():
            self._seen.add(name)

    def _notice(self) -> None:
        """What a rank waits for; the file goes when it waits no longer."""
        with contextlib.suppress(FileNotFoundError):
            text = self.run.notice.read_text(encoding="utf-8")
            if text not in self._seen:
                self._seen.add(text)
                show(text)

    def _data(self) -> bool:
        if not self.run.data.exists():
            return False
        data = rundir.read_json(self.run.data)
        dropped = ", ".join(f"{count} {reason}" for reason, count in data["dropped"].items()) or "none"
        show(
            f"data     {data['rows']} rows: {data['train_rows']} train, {data['eval_rows']} eval, dropped {dropped}; "
            f"{data['trained_tokens']:,} of {data['tokens']:,} tokens are trained"
        )
        if data.get("base_model"):
            show(f"note: {data['base_model']}")
        return True

    def _before(self) -> bool:
        if not self.run.samples.exists():
            return False
        for sample in rundir.read_json(self.run.samples)["samples"]:
            show(f"before   {sample['prompt']}\n{_indent(sample['before'])}")
        return True

    def _step(self, row: dict[str, Any]) -> str:
        step, total = int(row["step"]), int(row.get("train/total_steps", 0))
        parts = [f"step {step:>5}/{total}", f"loss {float(row['train/loss']):.4f}"]
        if "train/grad_norm" in row:
            parts.append(f"grad_norm {float(row['train/grad_norm']):.3g}")
        parts.append(f"lr {float(row['train/learning_rate']):.2e}")
        parts.append(f"{float(row['perf/tokens_per_second']):,.0f} tokens/s")
        return "  ".join([*parts, self._left(step, total)])

    def _left(self, step: int, total: int) -> str:
        now = time.monotonic()
        if self._first is None or step <= self._first[1]:
            self._first = (now, step)
            return ""
        seconds = (now - self._first[0]) / (step - self._first[1]) * max(0, total - step)
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d} left"

    def _eval(self, row: dict[str, Any]) -> str:
        if "probe/ended" in row:
            return _probe(row)
        name = "eval" if "eval/loss" in row else "test"
        return f"{name} at {int(row['step'])}: loss {float(row[f'{name}/loss']):.4f}"

    def removed(self) -> None:
        """Take back what `begin` has said: a refused run leaves no folder."""
        show(f"removed  {self.run.path}: the run was refused")

    def end(self, outcome: str, tracker: Tracker) -> None:
        """The closing table and what to type next."""
        if tracker.error:
            print(f"note: MLflow has not got everything: {tracker.error}", file=sys.stderr, flush=True)
        if outcome != "finished":
            return
        if self.run.samples.exists():
            for sample in rundir.read_json(self.run.samples)["samples"]:
                show(f"after    {sample['prompt']}\n{_indent(sample.get('after', ''))}")
        show()
        for name, value in table(rundir.read_json(self.run.result)):
            show(f"  {name:<22}{value}")
        show(f"  {'time':<22}{time.monotonic() - self.started:.0f} s")
        show(f"  {'run folder':<22}{self.run.path}")
        if self.request.folder is None:  # a sweep has its own last word
            self._next()

    def _next(self) -> None:
        argv = self.request.argv or ["experiment=demo"]
        show("\nnext:")
        if self.request.experiment.tracking.kind.value == "mlflow":
            where = [word for word in argv if word.startswith(("outputs=", "tracking."))]
            show(f"  {shlex.join([python(), '-m', 'sft_exp', 'ui', *where])}")
        if self.request.experiment.resume:
            return
        rerun = [word for word in argv if not word.startswith("train.learning_rate=")]
        rate = self.request.experiment.train.learning_rate / 2
        show(f"  {shlex.join([python(), '-m', 'sft_exp', *rerun, f'train.learning_rate={rate:g}'])}")


def _probe(row: dict[str, Any]) -> str:
    """One line on what the probes have found."""
    found = {name.partition("/")[2]: float(value) for name, value in row.items() if "/" in name}
    parts = [f"{found['ended']:.0%} of answers end", f"{found['repeated_4grams']:.0%} repeated"]
    if "kl" in found:
        parts.append(f"kl {found['kl']:.3f}")
    if "p_eos" in found:
        parts.append(f"p_eos {found['p_eos']:.2f}")
    return f"probe at {int(row['step'])}: {', '.join(parts)}"


def python() -> str:
    """The word that starts this Python in the user's shell: `python` where its environment is active, else its path."""
    found = shutil.which("python")
    if found and Path(found).absolute() == Path(sys.executable).absolute():
        return "python"
    here = Path(sys.executable).absolute()
    return str(here.relative_to(Path.cwd())) if here.is_relative_to(Path.cwd()) else str(here)


def table(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows of the closing table."""
    rows = [
        ("steps", f"{result['steps']} of {result['total_steps']}"),
        ("loss first / last", f"{float(result['loss_first']):.4f} / {float(result['loss_last']):.4f}"),
    ]
    if result.get("eval_loss") is not None:
        rows.append(("eval loss", f"{float(result['eval_loss']):.4f}"))
    if result.get("test_loss") is not None:
        rows.append(("test loss", f"{float(result['test_loss']):.4f}"))
    if result.get("grad_norm") is not None:
        rows.append(("grad_norm", f"{float(result['grad_norm']):.4g}"))
    if result.get("behaviour"):
        rows.append(("behaviour", str(result["behaviour"])))
    rows.append(("tokens/s", f"{float(result['tokens_per_second']):,.0f}"))
    rows.append(("peak memory", f"{float(result['peak_memory_gib']):.2f} GiB ({result['peak_memory_of']})"))
    if result.get("planned_memory_gib"):
        error = float(result["memory_error"])
        rows.append(("planned memory", f"{float(result['planned_memory_gib']):.2f} GiB ({error:+.1%} off)"))
    share = result["trainable_parameters"] / result["parameters"]
    rows.append(("trained parameters", f"{result['trainable_parameters']:,} ({share:.2%})"))
    if result.get("skipped_steps"):
        rows.append(("skipped steps", f"{result['skipped_steps']} (overflow in fp16)"))
    if result.get("new_rows_moved_min") is not None:
        rows.append(("added tokens", f"rows moved by {float(result['new_rows_moved_min']):.2%} or more"))
    if result.get("not_finite"):
        rows.append(("saved model", f"{result['not_finite']} weights hold NaN or infinity: it cannot be used"))
    return rows


def _indent(text: str) -> str:
    return "\n".join(f"         | {line}" for line in text.splitlines() or [""])
