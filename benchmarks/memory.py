"""Peak memory of real runs on one GPU beside the memory plan, one JSON object per line.

    python benchmarks/memory.py --out memory.jsonl
    python benchmarks/memory.py --out memory24.jsonl --cap 24
    python benchmarks/memory.py --out memory32.jsonl --cap 32 --jobs 4 --memory 130

Each case is three optimizer steps through the command line, with random weights and rows that fill
`dataset.max_length`. Cases that the file holds are left out, so a stopped benchmark goes on where it was. Runs share
the card as long as their plans fit into it together (`--jobs`): torch counts the peak of each process by itself.
`--cap` runs other cases, whose plans lie near 24 or 32 GiB, and gives every process so many GiB and no more, to see
whether what is planned to fit does.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory_cases import CAPPED, CASES, Case
from memory_rows import rows_name, write_rows

from sft_exp.memory import CONTEXT_GIB

LIMIT_S = 240
"""Seconds one run may take; the first DeepSpeed offload compiles its CPU Adam."""


def overrides(case: Case, folder: Path, cap: int | None) -> list[str]:
    """Overrides of one case with its files; a cap in GiB also becomes the profile's memory."""
    words = [*case.overrides(), f"dataset.path={folder / rows_name(case)}", f"outputs={folder / case.name}"]
    if cap is not None:
        # The cap is a card's, and CUDA takes its part of a card before torch does.
        fraction = (cap - CONTEXT_GIB) * 2**30 / card_bytes()
        words += [
            f"hw.memory_gib={cap:g}", "hw.memory_check=false",
            f'+hw.env.PYTORCH_CUDA_ALLOC_CONF="per_process_memory_fraction:{fraction:.5f},expandable_segments:True"',
        ]  # fmt: skip
    return words


def card_bytes() -> int:
    """Memory of the first card."""
    import pynvml

    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total)


@dataclass
class Running:
    """A started case."""

    case: Case
    process: subprocess.Popen[bytes]
    log: Path
    started: float


def start(case: Case, folder: Path, cap: int | None) -> Running:
    """Start one run with its output in a file."""
    log = folder / f"{case.name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "sft_exp", *overrides(case, folder, cap)],
            stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "4"},
        )  # fmt: skip
    return Running(case, process, log, time.monotonic())


def finish(run: Running, folder: Path, cap: int | None) -> dict[str, Any]:
    """What became of a run; its folder, which holds whole models, is removed."""
    row: dict[str, Any] = {
        "name": run.case.name, "cap_gib": cap, "seconds": round(time.monotonic() - run.started, 1),
        "exit": run.process.returncode, "overrides": run.case.overrides(),
    }  # fmt: skip
    outputs = folder / run.case.name
    for file in outputs.glob("*/*/result.json"):
        row["result"] = json.loads(file.read_text())
    for file in outputs.glob("*/*/record.json"):
        row["plan"] = json.loads(file.read_text()).get("memory_plan")
    if "result" not in row:
        ranks = "".join(file.read_text(errors="replace")[-1500:] for file in outputs.glob("*/*/logs/rank0.log"))
        row["tail"] = (run.log.read_text(errors="replace") + ranks)[-3000:]
        row["out_of_memory"] = "out of memory" in row["tail"].lower() or "OutOfMemory" in row["tail"]
    shutil.rmtree(outputs, ignore_errors=True)
    return row


def known(out: Path) -> set[str]:
    """Names that the file holds with a result, or with the end of memory as their result."""
    lines = out.read_text().splitlines() if out.exists() else []
    rows = [json.loads(line) for line in lines]
    return {row["name"] for row in rows if "result" in row or row.get("out_of_memory")}


def show(row: dict[str, Any]) -> None:
    """One line for a person."""
    result = row.get("result", {})
    peak, planned = result.get("peak_memory_gib"), result.get("planned_memory_gib")
    verdict = ending(row) if row.get("out_of_memory") else f"exit {row['exit']}"
    words = f"peak {peak:.2f}" if peak else verdict
    print(f"{row['name']:<50}{row['seconds']:>6.0f} s  {words}" + (f"  planned {planned:.2f}" if planned else ""))


def summary(out: Path) -> None:
    """Errors over all runs; under a cap, verdicts that were wrong."""
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    errors = sorted(abs(row["result"]["memory_error"]) for row in rows if "memory_error" in row.get("result", {}))
    if errors:
        print(f"{len(errors)} runs: median error {statistics.median(errors):.1%}, worst {errors[-1]:.1%}")
    for verdict in ("fits", "tight", "does not fit"):
        chosen = [row for row in rows if row["cap_gib"] and (row.get("plan") or {}).get("verdict") == verdict]
        if chosen:
            ends = Counter(ending(row) for row in chosen)
            print(f"planned as '{verdict}': {len(chosen)}: {', '.join(f'{ends[end]} {end}' for end in ends)}")
            wrong = {"fits": "out of memory", "does not fit": "ran"}.get(verdict)
            for row in chosen:
                if ending(row) == wrong:
                    print(f"  wrong: {row['name']}")


def ending(row: dict[str, Any]) -> str:
    """How a run ended; one that failed for another reason says nothing about memory."""
    if "result" in row:
        return "ran"
    return "out of memory" if row.get("out_of_memory") else "failed otherwise"


def benchmark(out: Path, jobs: int, memory: float, deadline_s: float, cap: int | None) -> None:
    """Run what is missing, several at a time, until done or out of time."""
    begun = time.monotonic()
    cases = CASES if cap is None else CAPPED[cap]
    waiting = [case for case in cases if case.name not in known(out)]
    running: list[Running] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for case in {rows_name(case): case for case in cases}.values():
            write_rows(folder / rows_name(case), case.length, case.packing)
        while running or waiting:
            late = time.monotonic() - begun > deadline_s
            room = memory - sum(run.case.size for run in running)
            fits = [case for case in waiting if case.size <= room]
            if fits and len(running) < jobs and not late:
                waiting.remove(fits[0])
                running.append(start(fits[0], folder, cap))
            for run in [run for run in running if ended(run)]:
                running.remove(run)
                row = finish(run, folder, cap)
                show(row)
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            if late and not running:
                print(f"{len(waiting)} cases are left: start again to go on.")
                return
            time.sleep(0.2)


def ended(run: Running) -> bool:
    """Whether a run is over; one that takes too long is ended."""
    if run.process.poll() is None and time.monotonic() - run.started > LIMIT_S:
        run.process.terminate()
        run.process.wait(60)
    return run.process.poll() is not None


def main() -> None:
    """Read arguments and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("memory.jsonl"))
    parser.add_argument("--jobs", type=int, default=3, help="runs at a time")
    parser.add_argument("--memory", type=float, default=120, help="GiB that runs may share")
    parser.add_argument("--deadline", type=float, default=520, help="seconds after which nothing is started")
    parser.add_argument("--cap", type=int, choices=sorted(CAPPED), help="GiB that each process may use")
    given = parser.parse_args()
    benchmark(given.out, given.jobs, given.memory, given.deadline, given.cap)
    summary(given.out)


if __name__ == "__main__":
    main()
