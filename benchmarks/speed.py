"""Tokens per second of ways to train the same conversations on one card, the usual recipe first.

    python benchmarks/speed.py --out speed.json
    python benchmarks/speed.py --out tiny.json --model tiny --hw cpu --steps 4 --every 1 --ways usual default

All ways run in one process, in turns (`--repeats`), with random weights of the model's shape. Conversations have 350
tokens in the median with a long tail, of which the assistant's are trained; padding is not counted. A step's time is
whole: waiting for data, forward, backward, optimizer, logging. The first interval holds start-up and is left out.
"""

import argparse
import gc
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from memory_rows import words

PLAIN = ("train.compile=false", "train.packing=false")
VARLEN = ("model.attention=varlen",)
PADDED = (*PLAIN, "model.attention=sdpa", "model.dtype=float32")
WAYS: dict[str, tuple[str, ...]] = {
    "usual": (
        *PADDED, "train.micro_batch=4", "train.global_batch=4", "dataset.max_length=1024",
        "train.gradient_checkpointing=true",
    ),
    "padded": (*PADDED, "train.micro_batch=16", "train.global_batch=16"),
    "default": VARLEN,
    "flat-fp32": (*VARLEN, *PLAIN, "model.dtype=float32", "train.micro_batch=64", "train.global_batch=64"),
    "flat-bf16": (*VARLEN, *PLAIN, "model.dtype=bfloat16", "train.micro_batch=64", "train.global_batch=64"),
    "flat-bf16-compiled": (*VARLEN,
        "train.compile=true", "train.packing=false", "model.dtype=bfloat16", "train.micro_batch=64",
        "train.global_batch=64",
    ),
    "packed-flex": (
        "train.compile=false", "train.packing=true", "model.dtype=bfloat16", "train.micro_batch=16",
        "train.global_batch=16", "model.attention=flex_attention",
    ),
    "packed": (*VARLEN,
        "train.compile=false", "train.packing=true", "model.dtype=bfloat16", "train.micro_batch=16",
        "train.global_batch=16",
    ),
    "packed-compiled": (*VARLEN,
        "train.compile=true", "train.packing=true", "model.dtype=bfloat16", "train.micro_batch=16",
        "train.global_batch=16",
    ),
    "packed-compiled-32": (*VARLEN,
        "train.compile=true", "train.packing=true", "model.dtype=bfloat16", "train.micro_batch=32",
        "train.global_batch=32",
    ),
    "packed-compiled-no-masters": (*VARLEN,
        "train.compile=true", "train.packing=true", "model.dtype=bfloat16", "train.micro_batch=16",
        "train.global_batch=16", "train.master_weights=false",
    ),
    "zero2": (*VARLEN, "train.packing=true", "train.micro_batch=16", "train.global_batch=16", "zero=2"),
    "zero3": (*VARLEN, "train.packing=true", "train.micro_batch=16", "train.global_batch=16", "zero=3"),
    "v100-usual": (
        *PADDED, "train.precision=fp16", "train.micro_batch=4", "train.global_batch=4", "dataset.max_length=1024",
        "train.gradient_checkpointing=true",
    ),
    "v100": (*PADDED, "train.precision=fp16", "train.micro_batch=16", "train.global_batch=16"),
    "lora-usual": (
        *PLAIN, "model.attention=sdpa", "adapter=lora", "train.micro_batch=4", "train.global_batch=4",
        "dataset.max_length=1024", "train.gradient_checkpointing=true",
    ),
    "lora": (*VARLEN, "adapter=lora", "train.micro_batch=16", "train.global_batch=16"),
    "lora-packed": (*VARLEN, "adapter=lora", "train.micro_batch=8", "train.global_batch=8", "train.packing=true"),
    "lora-packed-compiled": (*VARLEN,
        "adapter=lora", "train.micro_batch=8", "train.global_batch=8", "train.packing=true", "train.compile=true",
    ),
}  # fmt: skip
"""Name of a way -> its overrides, which win over `COMMON`."""
COMMON = (
    "model.path=null", "model.weights=random", "dataset=jsonl", "dataset.eval_fraction=0", "dataset.max_length=2048",
    "tracking=none", "eval.probes=false", "train.learning_rate=1e-5",
)  # fmt: skip


def write(path: Path, rows: int) -> None:
    """Conversations of one or two turns, log-normal in length: median 350 tokens, at most 1,900."""
    dice, known = random.Random(0), words()
    with path.open("w", encoding="utf-8") as file:
        for _ in range(rows):
            tokens = min(1900, max(40, int(dice.lognormvariate(5.86, 0.8)))) - 20
            turns = dice.choice((1, 2))
            messages = []
            for _ in range(turns):
                for role, share in (("user", 0.3), ("assistant", 0.7)):
                    text = " ".join(dice.choices(known, k=max(1, int(tokens * share / turns))))
                    messages.append({"role": role, "content": text})
            file.write(json.dumps({"messages": messages}) + "\n")


def measure(way: str, given: argparse.Namespace) -> dict[str, Any]:
    """Train one way in this process; its speeds."""
    import torch
    from accelerate.state import AcceleratorState

    from sft_exp import check, cli, launch, machine, resolve, rundir, train
    from sft_exp.prepare import prepare_run
    from sft_exp.trainer import Trainer

    found = machine.look()
    argv = [
        f"model={given.model}", f"hw={given.hw}", "hw.processes=1", *COMMON, f"dataset.path={given.rows}",
        f"train.max_steps={given.steps}", f"train.logging_steps={given.every}", f"outputs={given.out}.runs",
        *last_wins(WAYS[way]), *given.override,
    ]  # fmt: skip
    argv = list({item.split("=")[0]: item for item in argv}.values())
    _, sys.argv[1:] = cli.read_arguments(argv)  # Hydra reads them there
    [request], _ = cli.compose(argv)
    request.experiment = resolve.resolve(request.experiment, found)
    check.refuse(check.check(request.experiment, found))
    os.environ |= launch.added(request.experiment, os.environ, launch.free_port())
    AcceleratorState._reset_state(reset_partial_state=True)
    run = rundir.create(request)
    prepare_run(run)
    begun = time.perf_counter()
    kept: list[Trainer] = []
    keep_trainer(kept)
    train.final.save = lambda *_: None  # what is written at the end is not what is measured
    train.train(request, run)
    rows = [json.loads(line) for line in run.metrics.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if "train/loss" in row]
    experiment = request.experiment
    if experiment.train.profile:
        kept_files = (run.profile, run.trace)
        for file in kept_files:
            file.rename(given.out.with_name(f"{way}.{file.name}"))
    result = {
        "way": way, "model": given.model, "attention": experiment.model.attention.value,
        "dtype": experiment.model.dtype.value, "masters": experiment.train.master_weights,
        "micro_batch": experiment.train.micro_batch, "seconds": round(time.perf_counter() - begun, 1),
        "first_seconds": round(rows[0]["perf/step_seconds"], 2), "peak_gib": round(rows[-1]["perf/peak_memory_gib"], 2),
        "tokens_per_second": [round(row["perf/tokens_per_second"]) for row in rows[2:] or rows],
        "mfu": statistics.median(row.get("perf/mfu", 0) for row in rows[2:] or rows),
        "padding": rows[-1]["perf/padding_share"], "losses": [row["train/loss"] for row in rows],
        "flops_per_token": kept[-1].flops_per_token,
    }  # fmt: skip
    del kept
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return result


def last_wins(overrides: tuple[str, ...]) -> list[str]:
    """Each key once."""
    return list({item.split("=")[0]: item for item in overrides}.values())


def keep_trainer(kept: list[Any]) -> None:
    """Remember the trainer that `train.build` makes."""
    from sft_exp import train

    build = getattr(train, "_build", train.build)
    train._build = build  # type: ignore[attr-defined]

    def remember(*args: Any, **kwargs: Any) -> Any:
        kept.append(build(*args, **kwargs))
        return kept[-1]

    train.build = remember


def matmul_tflops() -> float:
    """Dense bf16 matrix product of 8,192 x 8,192: what this card really does, in TFLOP/s."""
    import torch

    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(5):
        a @ a
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(30):
        a @ a
    end.record()
    end.synchronize()
    return 30 * 2 * 8192**3 / (begin.elapsed_time(end) / 1e3) / 1e12


def table(rows: list[dict[str, Any]]) -> str:
    """Medians of each way against the first."""
    lines = ["| way | tokens/s | against the first | MFU | peak GiB |", "|---|---|---|---|---|"]
    speeds = {
        way: statistics.median(speed for row in rows if row["way"] == way for speed in row["tokens_per_second"])
        for way in dict.fromkeys(row["way"] for row in rows if "tokens_per_second" in row)
    }
    for way, speed in speeds.items():
        row = next(row for row in rows if row["way"] == way)
        first = next(iter(speeds.values()))
        lines.append(f"| {way} | {speed:,.0f} | {speed / first:.1f} | {row['mfu']:.1%} | {row['peak_gib']} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    import traceback

    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="qwen0.5b")
    parser.add_argument("--hw", default="auto")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=5, help="steps of one interval")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--override", nargs="*", default=[])
    given = parser.parse_args()
    given.out, given.rows = given.out.absolute(), given.out.absolute().with_suffix(".rows.jsonl")
    write(given.rows, 3000)
    rows: list[dict[str, Any]] = []
    if torch.cuda.is_available():
        rows.append({"way": "matmul", "tflops": matmul_tflops(), "card": torch.cuda.get_device_name()})
        print(rows[0], flush=True)
    for way in given.ways * given.repeats:
        try:
            rows.append(measure(way, given))
        except Exception:
            rows.append({"way": f"{way} failed", "error": traceback.format_exc()[-3000:]})
        print(json.dumps(rows[-1]), flush=True)
        given.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
