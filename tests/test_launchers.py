"""The scripts in `launchers/` run with SLURM's own programs faked at the boundary: what each of them would start."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WORDS = ["model=tiny", "hw=cpu2", "zero=2"]


def program(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def output(cwd: Path, *command: str, **variables: str) -> list[str]:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_slurm_starts_one_process_per_node_with_the_first_as_rendezvous(tmp_path: Path) -> None:
    program(tmp_path, ".venv/bin/python", f'exec {shlex.quote(sys.executable)} "$@"')
    program(tmp_path, "bin/scontrol", 'test "$*" = "show hostnames n[7-8]" && printf "n7\\nn8\\n"')
    program(tmp_path, "bin/srun", 'echo srun "$@"')
    *commands, started = output(
        tmp_path, "bash", str(ROOT / "launchers" / "slurm.sbatch"), *WORDS,
        PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}", SLURM_JOB_NODELIST="n[7-8]", SLURM_JOB_NUM_NODES="2",
    )  # fmt: skip
    several = ["hw.machines=2", "hw.rendezvous=n7:29500"]
    assert started == " ".join(["srun", "--kill-on-bad-exit=1", ".venv/bin/python", "-m", "sft_exp", *WORDS, *several])
    assert [line.partition(": ")[0] for line in commands] == ["machine 0", "machine 1"]
    for number, line in enumerate(commands):
        assert f"--nnodes 2 --node-rank {number} --nproc-per-node 2 --master-addr n7 --master-port 29501" in line


def test_slurm_asks_for_what_one_process_per_node_needs() -> None:
    lines = (ROOT / "launchers" / "slurm.sbatch").read_text().splitlines()
    asked = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    assert asked == [
        "--job-name=sft_exp", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=4", "--signal=TERM@120",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "added"), [("torchrun_multinode.sh", []), ("deepspeed_hostfile.sh", ["hw.launcher=deepspeed"])]
)
def test_a_machine_script_prints_the_command_that_launch_command_derives(
    tmp_path: Path, name: str, added: list[str]
) -> None:
    words = [*added, *WORDS, "hw.machines=2", "hw.rendezvous=10.0.0.1:29500"]
    derived = output(tmp_path, sys.executable, "-m", "sft_exp", "launch-command", *words)
    text = (ROOT / "launchers" / name).read_text()
    program(tmp_path, ".venv/bin/python", f'case "$*" in *launch-command*) exec {shlex.quote(sys.executable)} "$@";; '
            '*) echo "machine $SFT_EXP_MACHINE runs" "$@";; esac')  # fmt: skip
    script = tmp_path / "launchers" / name
    script.parent.mkdir()
    script.write_text(text)
    *printed, started = output(tmp_path, "bash", str(script), "1", *words[len(added) :])
    assert printed == derived
    assert started == " ".join(["machine 1 runs -m sft_exp", *words])
