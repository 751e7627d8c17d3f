"""Tokens per second and peak memory of every ZeRO setting on one card, as JSON and as a Markdown table.

    python benchmarks/zero_speed.py --out zero_speed.json
    python benchmarks/zero_speed.py --out tiny.json --model tiny --hw cpu --length 128 --steps 3 --zero 0 2

One run after the other through the command line, with random weights and rows that fill `dataset.max_length`. Settings
that the file holds are left out, so that a stopped benchmark goes on where it was.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from memory_rows import write_rows

SETTINGS = ("0", "1", "2", "3", "2_offload", "3_offload")
LIMIT_S = 400
"""Seconds one run may take; the first offload compiles DeepSpeed's CPU Adam."""
HEAD = ("setting", "tokens/s", "of zero=0", "step, s", "peak GiB", "planned GiB", "last loss", "grad_norm")


def overrides(zero: str, given: argparse.Namespace, rows: Path, outputs: Path) -> list[str]:
    """What is typed after `python -m sft_exp`."""
    return [
        f"model={given.model}", "model.path=null", "model.weights=random", "adapter=full", f"zero={zero}",
        f"hw={given.hw}", f"dataset.max_length={given.length}", f"train.micro_batch={given.micro}",
        f"train.global_batch={given.micro * given.accumulation}", f"train.max_steps={given.steps}",
        "train.logging_steps=1", "dataset=jsonl", f"dataset.path={rows}", "dataset.eval_fraction=0",
        "tracking=none", f"outputs={outputs}",
    ]  # fmt: skip


def measure(zero: str, given: argparse.Namespace, rows: Path) -> dict[str, Any]:
    """One run: its result, or the end of its output."""
    with tempfile.TemporaryDirectory() as outputs:
        typed = overrides(zero, given, rows, Path(outputs))
        started = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "sft_exp", *typed], capture_output=True, text=True, check=False, timeout=LIMIT_S,
            )  # fmt: skip
            code, text = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired as error:
            code, text = None, f"no end within {error.timeout:.0f} s"
        row = {"zero": zero, "exit": code, "seconds": round(time.monotonic() - started, 1)}
        file = next(Path(outputs).glob("*/*/result.json"), None)
        if file is None:
            return {**row, "tail": text[-2000:]}
        steps = [json.loads(line) for line in file.with_name("metrics.jsonl").read_text().splitlines()]
        times = sorted(step["perf/step_seconds"] for step in steps[1:] if "perf/step_seconds" in step)
        return {**row, "result": json.loads(file.read_text()), "step_seconds": times[len(times) // 2]}


def table(rows: list[dict[str, Any]]) -> str:
    """The Markdown table; runs that failed are a row too."""
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    base = next((row["result"]["tokens_per_second"] for row in rows if row["zero"] == "0" and "result" in row), None)
    for row in rows:
        lines.append(f"| `zero={row['zero']}` | {' | '.join(cells(row, base))} |")
    return "\n".join(lines) + "\n"


def cells(row: dict[str, Any], base: float | None) -> list[str]:
    """Numbers of one run, under `HEAD`."""
    if "result" not in row:
        return [f"failed (exit {row['exit']})", *["-"] * (len(HEAD) - 2)]
    result = row["result"]
    speed, planned = result["tokens_per_second"], result.get("planned_memory_gib")
    return [
        f"{speed:,.0f}", f"{speed / base:.2f}" if base else "-", f"{row['step_seconds']:.2f}",
        f"{result['peak_memory_gib']:.2f}", f"{planned:.2f}" if planned else "-", f"{result['loss_last']:.4f}",
        f"{result['grad_norm']:.3f}",
    ]  # fmt: skip


def benchmark(given: argparse.Namespace) -> None:
    """Run what is missing; JSON and table are written after each run."""
    rows: list[dict[str, Any]] = json.loads(given.out.read_text()) if given.out.exists() else []
    rows = [row for row in rows if "result" in row]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "rows.jsonl"
        write_rows(data, given.length, packing=False)
        for zero in given.zero:
            if zero in {row["zero"] for row in rows}:
                continue
            if time.monotonic() - begun > given.deadline:
                print("out of time: start again to go on.")
                break
            rows.append(measure(zero, given, data))
            print(f"zero={zero}: {', '.join(cells(rows[-1], None))}", flush=True)
            rows.sort(key=lambda row: SETTINGS.index(row["zero"]))
            given.out.write_text(json.dumps(rows, indent=1))
            given.out.with_suffix(".md").write_text(table(rows))
    print(table(rows))


def main() -> None:
    """Read arguments and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("zero_speed.json"))
    parser.add_argument("--model", default="qwen0.5b")
    parser.add_argument("--hw", default="h200")
    parser.add_argument("--zero", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--micro", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--deadline", type=float, default=480, help="seconds after which nothing is started")
    benchmark(parser.parse_args())


if __name__ == "__main__":
    main()
