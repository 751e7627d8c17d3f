"""Is a sick run called sick, by its right name, and a healthy one healthy?

python benchmarks/behaviour.py --seeds 5 --device cuda     all cases with five seeds on real SmolLM2-135M weights
python benchmarks/behaviour.py --seeds 1 --device cpu --cases healthy "end token masked out"

Each seed is a process that trains its cases one after the other, with the libraries loaded once; on a card several
seeds run at a time. Prints the verdict on each run beside what it should be and ends with 1 if one is wrong; all
records go to --out.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from behaviour_cases import CASES, COMMON, Case, write

STEPS = {"cpu": (24, 60), "cuda": (60, 300)}
"""Steps of an ordinary case, and of many epochs on few rows: 300 epochs of 8 rows are 300 steps of 8."""
PROBES = {
    "cpu": ("hw=cpu", "eval.count=16", "eval.tokens=64", "eval.answers=12", "train.micro_batch=4"),
    "cuda": ("hw=auto", "hw.processes=1", "eval.tokens=96", "eval.answers=24", "eval.batch=64", "train.micro_batch=8"),
}


def overrides(case: Case, args: argparse.Namespace, folder: Path) -> list[str]:
    """Command line of one run."""
    device, seed = args.device, args.seed
    steps = (args.steps or STEPS[device])[case.repeats]
    base = [f"model.path={folder / case.base}/model"] if case.base else []
    shared = [
        *COMMON,
        *PROBES[device],
        f"train.seed={seed}",
        f"train.max_steps={steps}",
        f"dataset.path={write(case, folder)}",
    ]
    return [*shared, *case.overrides, *base, f"outputs={folder}/outputs"]


def train(case: Case, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train in this process; what became of it."""
    from accelerate.state import AcceleratorState

    from sft_exp import check, cli, launch, machine, resolve, rundir
    from sft_exp.prepare import prepare_run
    from sft_exp.train import train as train_run

    begun, found = time.time(), machine.look()
    argv = overrides(case, args, folder)
    _, sys.argv[1:] = cli.read_arguments(argv)  # Hydra reads them there
    [request], _ = cli.compose(argv)
    request.experiment = resolve.resolve(request.experiment, found)
    check.refuse(check.check(request.experiment, found))
    os.environ |= launch.added(request.experiment, os.environ, launch.free_port())
    AcceleratorState._reset_state(reset_partial_state=True)
    run = rundir.create(request)
    prepare_run(run)
    train_run(request, run)
    (folder / case.name).symlink_to(run.path)
    record = rundir.read_json(run.behaviour)
    result = rundir.read_json(run.result)
    return {"case": case.name, "seed": args.seed, "seconds": time.time() - begun, "result": result, **record}


def right(row: dict[str, Any]) -> bool:
    """Whether the verdict on a run is what it should be."""
    wanted = next(case.verdict for case in CASES if case.name == row["case"])
    if not wanted:
        return row["verdict"] == "healthy"
    return any(reason.startswith(wanted) for reason in row["reasons"])


def work(args: argparse.Namespace) -> None:
    """Train the cases of one seed, and those that they begin with."""
    names = [*args.cases, *(case.base for case in CASES if case.base and case.name in args.cases)]
    folder = args.out / f"seed{args.seed}"
    folder.mkdir(parents=True)
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for case in CASES:
            if case.name in names:
                file.write(json.dumps(train(case, args, folder), ensure_ascii=False) + "\n")
                file.flush()


def table(rows: list[dict[str, Any]]) -> int:
    """Print the verdicts; the number of wrong ones."""
    for row in rows:
        mark = "right" if right(row) else "WRONG"
        print(f"{mark}  {row['case']:<24} seed {row['seed']}  {row['seconds']:5.0f} s  {row['headline']}")
    wrong = sum(not right(row) for row in rows)
    print(f"{wrong} of {len(rows)} verdicts are wrong")
    return wrong


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", choices=sorted(STEPS), default="cpu")
    parser.add_argument("--workers", type=int, help="seeds at a time; 5 on a card, 1 on the CPU")
    parser.add_argument("--steps", type=int, nargs=2, help="steps of an ordinary case, and of 300 epochs on 8 rows")
    parser.add_argument("--cases", nargs="+", default=[case.name for case in CASES])
    parser.add_argument("--out", type=Path, default=Path("outputs/behaviour"))
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Train all seeds, then judge the judge."""
    args = arguments()
    if args.seed is not None:
        work(args)
        return
    waiting, running, workers = list(range(1, args.seeds + 1)), [], args.workers or {"cpu": 1, "cuda": 5}[args.device]
    args.out.mkdir(parents=True, exist_ok=True)
    same = ["--device", args.device, "--out", str(args.out.absolute()), "--cases", *args.cases]
    same += ["--steps", *map(str, args.steps)] if args.steps else []
    while waiting or running:
        while waiting and len(running) < workers:
            seed = waiting.pop(0)
            log = (args.out / f"seed{seed}.log").open("w")
            command = [sys.executable, __file__, "--seed", str(seed), *same]
            running.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        running = [process for process in running if process.poll() is None]
        time.sleep(0.2)
    files = sorted(args.out.glob("seed*/rows.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    wrong = table(rows)
    missing = args.seeds * len(args.cases) - sum(row["case"] in args.cases for row in rows)
    if missing:
        print(f"{missing} runs have failed: see {args.out}/seed*.log")
    sys.exit(bool(wrong or missing))


if __name__ == "__main__":
    main()
