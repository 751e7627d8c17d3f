"""Lines of the doctor, each with its fault (the list is in test_doctor_faults.py), and the command itself."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sft_exp
from composing import NO_CARDS, machine, resolved
from sft_exp.doctor import compilers, leftover_runs, torch_build, versions
from sft_exp.doctor.line import Line, State, judged, told
from sft_exp.machine import Machine
from sft_exp.rules import zero

SOURCE = Path(sft_exp.__file__).resolve().parents[1]
GPU = machine("4090", 4)
CPU = ("model=tiny", "hw=cpu")


def only(lines: list[Line]) -> tuple[State, str]:
    """State and whole text of the one line."""
    [line] = lines
    return line.state, f"{line.found}: {line.advice}"


def run(*argv: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sft_exp", "doctor", *argv], cwd=cwd, capture_output=True, text=True, timeout=200,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **env}, check=False,
    )  # fmt: skip


def test_a_sentence_is_split_where_the_advice_begins() -> None:
    lines = told("disk", ["outputs=/a has 1 GiB (reason: none): free some.", "broken."])
    assert [(line.found, line.advice) for line in lines] == [
        ("outputs=/a has 1 GiB (reason: none)", "free some"), ("broken", ""),
    ]  # fmt: skip
    assert judged("disk", [], "well") == [Line(name="disk", state=State.ok, found="well")]


# The command.


def test_a_healthy_machine(here: Path) -> None:
    """Exit code 0 without a GPU; what could not be checked is said; torch is never needed in this process."""
    done = run(*CPU, cwd=here)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if line[:4].strip() in {state.value for state in State}]
    states = {row[6:21].strip(): row[:4].strip() for row in rows}
    assert states["Python"] == "ok"
    assert {states[name] for name in ("kernels", "cards", "links", "pinned memory", "all-reduce")} == {"skip"}
    assert "fail" not in states.values()
    assert "0 fail" in done.stdout.splitlines()[-1]


def test_json_and_exit_code(here: Path) -> None:
    """One line that fails is enough; the list is whole and nothing else is on stdout."""
    done = run("model=tiny", "hw=4090x4", "--json", cwd=here, HYDRA_FULL_ERROR="0")
    lines = json.loads(done.stdout)
    assert all(line.keys() == {"name", "state", "found", "advice"} for line in lines)
    states = {line["name"]: line["state"] for line in lines}
    assert done.returncode == 1
    assert states["profile"] == "fail"
    assert "profile" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_light_process_stays_light(here: Path) -> None:
    code = "import sys; from sft_exp.doctor import command; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "False"]


# Versions.


def test_the_ranges_and_the_tested_set_are_found() -> None:
    wanted, needs = versions.needs()
    assert wanted.startswith(">=3.11")
    assert {"torch", "transformers", "trl"} <= {item.name for item in needs}
    assert {"torch", "transformers", "trl"} <= versions.tested().keys()


def test_the_ranges_of_an_installed_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(versions, "HERE", tmp_path / "site-packages" / "sft_exp")
    wanted, needs = versions.needs()
    assert wanted
    assert "torch" in {item.name for item in needs}
    assert "ruff" not in {item.name for item in needs}
    assert versions.tested() == {}


@pytest.mark.parametrize(
    ("version", "state"), [("3.11.7", State.ok), ("3.13.2", State.ok), ("3.10.1", State.fail), ("3.14.0", State.fail)]
)
def test_python(version: str, state: State) -> None:
    assert versions.python(">=3.11,<3.14", version).state is state


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"trl": "1.16.0", "torch": "2.13.1+cu130"}, [(State.ok, "2 as tested")]),
        ({"trl": "1.16.0", "torch": "2.11.0"}, [(State.warn, "torch 2.11.0 (tested 2.13.0)")]),
        ({"trl": "2.0.0", "torch": "2.13.0"}, [(State.fail, "trl 2.0.0 (needs <2,>=1.16)"), (State.warn, "trl 2.0.0")]),
        ({"trl": "1.16.0"}, [(State.fail, "torch not installed")]),
    ],
)
def test_packages(found: dict[str, str], expected: list[tuple[State, str]]) -> None:
    wanted = [item for item in versions.needs()[1] if item.name in ("trl", "torch")]
    lines = versions.packages(wanted, {"trl": "1.16.0", "torch": "2.13.0"}, found)
    assert [line.state for line in lines] == [state for state, _ in expected]
    assert all(words in line.found for line, (_, words) in zip(lines, expected, strict=True))


@pytest.mark.parametrize(
    ("typed", "without"),
    [
        ("model=tiny hw=cpu tracking=none", {"mlflow", "deepspeed", "bitsandbytes", "gguf", "ninja"}),
        ("hw=cpu2 zero=2 adapter=qlora", set()),
        ("model=tiny hw=cpu train.optimizer=adamw_8bit", {"deepspeed", "gguf", "ninja"}),
    ],
)
def test_what_a_run_does_without(here: Path, typed: str, without: set[str]) -> None:
    assert versions.unneeded(resolved(*typed.split())) == without


# torch, driver and kernels.


@pytest.mark.parametrize(
    ("on", "typed", "state", "words"),
    [
        (NO_CARDS, "hw=cpu", State.ok, "built for the CPU"),
        (Machine(), "hw=cpu", State.fail, "pip install torch"),
        (GPU, "hw=4090x1", State.ok, "driver 580.95 runs CUDA up to 13.0"),
        (machine("4090", driver_cuda=12.2), "hw=4090x1", State.fail, "update the driver to 580"),
        (machine("4090", torch_cuda=None), "hw=4090x1", State.fail, "without CUDA"),
        (machine("v100"), "hw=v100", State.fail, "install torch for CUDA 12.6"),
    ],
)
def test_driver(here: Path, on: Machine, typed: str, state: State, words: str) -> None:
    found = only(torch_build.driver(resolved("model=tiny", typed, on=on), on))
    assert found[0] is state
    assert words in found[1]


CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]
CU126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]


@pytest.mark.parametrize(
    ("capability", "architectures", "expected"),
    [
        (7.0, CU130, False), (7.0, CU126, True), (8.9, CU130, True), (9.0, CU126, True), (12.0, CU126, False),
        (12.1, CU130, True), (9.0, ["sm_90a"], True), (9.1, ["sm_90a"], False), (8.0, ["sm_86"], False),
        (10.0, ["compute_90"], True), (10.0, ["sm_90"], False), (8.0, [], False),
    ],
)  # fmt: skip
def test_kernels_of_a_build(capability: float, architectures: list[str], expected: bool) -> None:
    assert torch_build.has_kernels(capability, architectures) is expected


def test_kernels_line(here: Path) -> None:
    def line(on: Machine, answer: dict[str, Any]) -> tuple[State, str]:
        return only([torch_build.kernels(resolved("model=tiny", "hw=auto", on=on), on, lambda: answer)])

    built = {"available": True, "architectures": CU130}
    assert line(GPU, built) == (State.ok, "torch has them for compute capability 8.9: ")
    state, text = line(machine("v100"), built)
    assert state is State.fail
    assert "Tesla V100" in text
    assert "CUDA 12.6" in text
    assert "sees no usable card" in line(GPU, {"available": False, "architectures": []})[1]
    assert "broken pipe" in line(GPU, {"error": "broken pipe"})[1]
    assert line(NO_CARDS, {})[0] is State.skip


# Compilers.


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, **versions_: str) -> None:
    """A PATH that holds these programs only."""
    folder.mkdir()
    for name, text in versions_.items():
        program = folder / name.replace("gxx", "g++")
        program.write_text(f"#!/bin/sh\necho '{text}'\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "prefix", str(folder))


def test_compilers_are_there(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(
        here / "bin", monkeypatch, gxx="g++ (Debian 12.2.0-14) 12.2.0", ninja="1.13.0", nvcc="release 12.2, V12.2.140"
    )
    state, text = only(compilers.lines(resolved("model=tiny", "hw=cpu2", "zero=2_offload")))
    assert state is State.ok
    assert text.startswith("g++ 12.2.0, ninja 1.13.0, nvcc 12.2; ")
    assert "shared-memory collectives and CPU Adam, nvcc is not needed" in text


def test_a_compiler_is_missing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run refuses it with the same sentence."""
    programs(here / "bin", monkeypatch, gxx="g++ 12.2.0")
    experiment = resolved("model=tiny", "hw=cpu2", "zero=2")
    state, text = only(compilers.lines(experiment))
    assert state is State.fail
    assert "ninja is not on PATH" in text
    assert f"{text}." in list(zero.problems(experiment))
    assert only(compilers.lines(resolved(*CPU)))[0] is State.skip
    on_cards = resolved("model=tiny", "hw=4090x4", "zero=3", on=GPU)
    assert only(compilers.lines(on_cards))[0] is State.ok
    assert list(zero.problems(on_cards)) == []


@pytest.mark.parametrize(
    ("typed", "on", "expected"),
    [
        ("hw=cpu2 zero=2", NO_CARDS, ["shared-memory collectives"]),
        ("hw=4090x4 zero=3", GPU, []),
        ("hw=4090x4 zero=3_offload", GPU, ["CPU Adam"]),
    ],
)
def test_what_is_compiled(here: Path, typed: str, on: Machine, expected: list[str]) -> None:
    assert zero.compiled(resolved("model=tiny", *typed.split(), on=on)) == expected


# Ranks that nobody waits for.


def sleeper(*words: str) -> subprocess.Popen[bytes]:
    """A process with these words on its command line, which appear a moment after it has started."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", *words])
    while words[-1].encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
        time.sleep(0.01)
    return process


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose command line is that of a rank of the run `tmp_path`."""
    process = sleeper("sft_exp.worker", str(tmp_path))
    yield process
    process.kill()
    process.wait()


def status(folder: Path, pid: int) -> None:
    (folder / "status.json").write_text(json.dumps({"state": "running", "pid": pid}))


def gone() -> int:
    """Number of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def test_a_rank_without_a_parent_is_named(tmp_path: Path, rank: subprocess.Popen[bytes]) -> None:
    status(tmp_path, gone())
    line = leftover_runs.line()
    assert line.state is State.warn
    assert tmp_path.name in line.found
    assert str(rank.pid) in line.advice.split()


def test_a_rank_of_a_living_run_is_left_alone(tmp_path: Path, rank: subprocess.Popen[bytes]) -> None:
    parent = sleeper("sft_exp")
    try:
        status(tmp_path, parent.pid)
        assert str(rank.pid) not in leftover_runs.line().advice.split()
    finally:
        parent.kill()
        parent.wait()


def test_a_rank_whose_run_has_ended_or_vanished(tmp_path: Path) -> None:
    here = leftover_runs.Rank(1, tmp_path)
    assert leftover_runs.orphaned(here)
    (tmp_path / "status.json").write_text('{"state": "failed"}')
    assert leftover_runs.orphaned(here)
