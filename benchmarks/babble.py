"""sweep=babble and its reference in one folder, several runs on one device at a time.

python benchmarks/babble.py --out outputs/babble                      24 runs, six at a time
python benchmarks/babble.py --out outputs/babble --seeds 1 2 -- hw=cpu train.max_steps=3 eval.count=4
python -m sft_exp compare outputs/babble --metric probe/ended         what each factor moved

Everything behind -- goes to every run. Weights of a finished run are deleted, unless --keep asks for them.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

TOKENS = ("none", "trained", "untrained")
ADAPTERS = {"lora": TOKENS, "qlora": TOKENS, "full": TOKENS[:2]}
"""What `full` cannot do is to leave rows untrained."""
FULL = ("train.learning_rate=5e-5",)
"""As in conf/sweep/babble_full.yaml."""
HEAVY = ("model", "checkpoints", "probes/base")


@dataclass
class Job:
    """One run: an entry of sweep.json."""

    number: int
    overrides: str
    folder: str
    state: str = "waiting"
    seconds: float = 0.0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)


def jobs(args: argparse.Namespace) -> list[Job]:
    """All runs, seed by seed, so that a sweep that is stopped early still has every setting."""
    found = list[Job]()
    for seed in args.seeds:
        for adapter, tokens in ADAPTERS.items():
            for name in tokens:
                words = [f"adapter={adapter}", f"experiment=babble_{name}", f"train.seed={seed}"]
                words += FULL if adapter == "full" else ()
                number = len(found)
                found.append(Job(number, " ".join(words), str(args.out / f"{number}-{adapter}-{name}-{seed}")))
    return found


def start(job: Job, args: argparse.Namespace) -> None:
    """Begin a run; its folder gets its short name when it has ended."""
    words = [*job.overrides.split(), "tracking=none", f"outputs={job.folder}.outputs", *args.overrides]
    with Path(f"{job.folder}.log").open("wb") as log:
        command = [sys.executable, "-m", "sft_exp", *words]
        # One thread for each run: on a card they have nothing to do but to launch kernels.
        env = {"OMP_NUM_THREADS": "1"} | os.environ
        job.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)
    job.state, job.seconds = "running", time.monotonic()


def end(job: Job, code: int, keep: bool) -> None:
    """Note how a run went, and put its folder where compare looks for it."""
    job.seconds = time.monotonic() - job.seconds
    job.state = "finished" if code == 0 else "failed"
    made = [file.parent for file in Path(f"{job.folder}.outputs").glob("*/*/request.json")]
    for folder in made[:1]:
        shutil.move(folder, job.folder)
        for name in () if keep else HEAVY:
            shutil.rmtree(Path(job.folder) / name, ignore_errors=True)
    shutil.rmtree(f"{job.folder}.outputs", ignore_errors=True)
    print(f"{job.state:<9}{job.seconds:5.0f} s  {job.overrides}", flush=True)


def save(found: list[Job], folder: Path) -> None:
    """Write sweep.json."""
    rows = [asdict(Job(job.number, job.overrides, job.folder, job.state, job.seconds)) for job in found]
    text = json.dumps({"jobs": [{key: row[key] for key in row if key != "process"} for row in rows]}, indent=1)
    (folder / "sweep.json").write_text(text, encoding="utf-8")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the sweep, a new one")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--at-a-time", type=int, default=6)
    parser.add_argument("--keep", action="store_true", help="keep the weights")
    parser.add_argument("overrides", nargs="*", help="for every run, such as train.max_steps=3")
    args = parser.parse_args()
    args.out = args.out.absolute()
    return args


def main() -> None:
    """Run all; ends with 1 if one has failed."""
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a time limit ends the runs too
    args.out.mkdir(parents=True)
    found = jobs(args)
    waiting, running = list(found), list[Job]()
    try:
        while waiting or running:
            while waiting and len(running) < args.at_a_time:
                running.append(job := waiting.pop(0))
                start(job, args)
            time.sleep(0.2)
            for job in list(running):
                if job.process is not None and (code := job.process.poll()) is not None:
                    running.remove(job)
                    end(job, code, args.keep)
                    save(found, args.out)
    finally:
        for job in running:
            if job.process is not None:
                job.process.terminate()
    failed = sum(job.state == "failed" for job in found)
    print(f"{len(found) - failed} of {len(found)} runs finished; {args.out}/*.log say more")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
