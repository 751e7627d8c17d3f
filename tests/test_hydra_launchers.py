"""Sweeps whose jobs Hydra's own launchers run: submitit's local executor for real, SLURM's programs at the boundary."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import sweeping
from composing import Compose
from sft_exp import cli, descendants, explain, rundir
from sft_exp.errors import ConfigError
from sft_exp.rules import sweep as rules
from sft_exp.schema import Sweep
from sft_exp.sweeps import job, ready
from sft_exp.sweeps.launcher import Chosen
from sweeping import TINY

WORDS = [*TINY, "tracking=none", "hw.threads=1", "dataset.eval_fraction=0"]


def plugin(name: str) -> pytest.MarkDecorator:
    found = importlib.util.find_spec("hydra_plugins")
    there = found is not None and importlib.util.find_spec(f"hydra_plugins.hydra_{name}_launcher")
    return pytest.mark.skipif(not there, reason=f"hydra-{name}-launcher is not installed")


def call(cwd: Path, *words: str, **variables: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "sft_exp", *words], cwd=cwd, env={**os.environ, **variables}, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@plugin("submitit")
def test_submitit_runs_two_jobs(tmp_path: Path) -> None:
    words = ["-m", "hydra/launcher=submitit_local", *WORDS, "train.max_steps=3", "train.learning_rate=1e-3,2e-3,-1"]
    code, text = call(tmp_path, *words)
    assert code == 1 and "1 of 3 jobs did not finish: 2 refused." in text
    assert "handed over to hydra/launcher=submitit_local: job 0, 1" in text
    record = sweeping.record(tmp_path)
    assert [each["state"] for each in record["jobs"]] == ["finished", "finished", "refused"]
    for number, rate in enumerate([1e-3, 2e-3]):
        folder = Path(record["jobs"][number]["folder"])
        assert rundir.read_json(folder / "config.json")["train"]["learning_rate"] == rate
        assert rundir.read_json(folder / "result.json")["steps"] == 3
        assert record["jobs"][number]["seconds"] > 1
    assert list((folder.parent / ".submitit").glob("*/*_result.pkl"))


@pytest.mark.slow
@plugin("submitit")
def test_a_killed_job_is_named_and_the_same_command_goes_on(tmp_path: Path) -> None:
    words = [
        "-m",
        "hydra/launcher=submitit_local",
        *WORDS,
        "train.max_steps=80",
        "train.save_steps=5",
        "train.seed=1,2",
    ]
    driver = sweeping.start(tmp_path, *words)
    sweeping.wait_until(lambda: list(tmp_path.glob("outputs/*/*-sweep/1-*/checkpoints/checkpoint-*")))
    [tree] = [each.pid for each in descendants.children(driver.pid) if runs(each.pid, "1.json")]
    descendants.terminate([tree, *(each.pid for each in descendants.below(tree))], signal.SIGKILL)
    assert driver.wait() == 1
    jobs = sweeping.record(tmp_path)["jobs"]
    assert [each["state"] for each in jobs] == ["finished", "failed"]
    assert "killed with all around it" in jobs[1]["reason"]
    written = (Path(jobs[0]["folder"]) / "result.json").stat().st_mtime_ns

    code, text = call(tmp_path, *words, f"sweep.resume={Path(jobs[0]['folder']).parent}")
    assert code == 0, text
    assert "handed over to hydra/launcher=submitit_local: job 1" in text
    assert sweeping.states(tmp_path) == ["finished", "finished"]
    rows = [json.loads(line) for line in (Path(jobs[1]["folder"]) / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 81))
    assert (Path(jobs[0]["folder"]) / "result.json").stat().st_mtime_ns == written


def runs(pid: int, file: str) -> bool:
    """Whether a process or one below it works on a file."""
    pids = [pid, *(each.pid for each in descendants.below(pid))]
    return any(file in Path(f"/proc/{each}/cmdline").read_text() for each in pids)


@pytest.mark.slow
@plugin("submitit")
def test_slurm_is_asked_for_what_a_job_needs(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("srun", "exit 0"), ("sbatch", f'cat "$1" > {tmp_path}/script; echo no such partition; exit 1')):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    words = ["-m", "hydra/launcher=slurm", "hydra.launcher.partition=gpu", "model=tiny", "hw=h200x2", "tracking=none"]
    code, text = call(tmp_path, *words, "train.seed=1,2", PATH=f"{programs}:{os.environ['PATH']}")
    assert code == 1 and "hydra/launcher=slurm has not started it: FailedJobError: " in text
    lines = (tmp_path / "script").read_text().splitlines()
    asked = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    [folder] = tmp_path.glob("outputs/*/*-sweep")
    assert asked == [
        "--array=0-1%2", "--cpus-per-task=8", "--gpus-per-node=2", "--job-name=sft_exp", "--nodes=1",
        "--ntasks-per-node=1", "--open-mode=append", f"--output={folder}/.submitit/%A_%a/%A_%a_0_log.out",
        "--partition=gpu", "--signal=USR2@120", "--time=1440", "--wckey=submitit",
    ]  # fmt: skip
    assert f"{sys.executable} -u -m submitit.core._submit {folder}/.submitit/%j" in lines[-1]


@pytest.mark.slow
@plugin("ray")
def test_ray_runs_two_jobs(tmp_path: Path) -> None:
    code, text = call(tmp_path, "-m", "hydra/launcher=ray", *WORDS, "train.max_steps=3", "train.seed=1,2")
    assert code == 0, text
    assert sweeping.states(tmp_path) == ["finished", "finished"]


def compose(monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["sft_exp", *cli.read_arguments(list(words))[1]])
    return cli.compose(list(words))


@plugin("submitit")
def test_jobs_are_composed_here_whoever_runs_them(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["hydra/launcher=slurm", "hydra.launcher.partition=gpu", "hw=4090x4", "model=tiny", "train.seed=1,2"]
    requests, _ = compose(monkeypatch, "-m", *words)
    assert [each.experiment.train.seed for each in requests] == [1, 2]
    assert Chosen.launcher and Chosen.launcher.name == "slurm"
    chosen = Chosen.launcher.config.hydra.launcher
    assert (chosen.partition, chosen.gpus_per_node, chosen.timeout_min) == ("gpu", 4, 1440)
    compose(monkeypatch, "-m", "model=tiny", "train.seed=1,2")
    assert Chosen.launcher is None
    with pytest.raises(ConfigError, match="hydra/launcher=slurm runs the jobs of -m"):
        compose(monkeypatch, *words[:-1])


def test_what_a_launcher_cannot_have(compose: Compose) -> None:
    with pytest.raises(ConfigError, match=r"sweep\.per_device=2 shares the cards of this machine"):
        rules.refuse(Sweep(per_device=2), by_launcher=True)
    rules.refuse(Sweep(per_device=2))
    request = compose("model=tiny", "hw.machines=2", "hw.rendezvous=10.0.0.1:29500")
    assert "hw.machines=2: a job of a sweep runs on one machine" in next(rules.of_job(request.experiment))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("In 'hydra/launcher/slurm': Could not load 'hydra/launcher/submitit_slurm'.", "hydra/launcher=slurm needs"),
        ("In 'hydra/config': Could not find 'hydra/launcher/ray'\n", "hydra/launcher=ray needs the package hydra-ray"),
    ],
)
def test_a_launcher_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert words in explain.explain(ValueError(text))


def test_seconds_of_a_job_that_ended_after_its_driver(compose: Compose, tmp_path: Path) -> None:
    asked = job.new(0, compose("model=tiny"), tmp_path)
    asked.run.path.mkdir()
    now = time.time()
    rundir.write_json(asked.run.status, {"state": "finished", "started": now - 60, "ended": now})
    ready.recall(asked)
    assert (asked.state, round(asked.seconds)) == ("finished", 60)
