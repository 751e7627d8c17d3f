"""The value check between ranks: real processes over gloo, with faults that are really made."""

import dataclasses
import os
import time
from pathlib import Path

import pytest

from composing import machine, resolved
from sft_exp.doctor import allreduce
from sft_exp.doctor.allreduce import Outcome
from sft_exp.doctor.line import State
from sft_exp.schema import Experiment

pytestmark = pytest.mark.slow

THREE = ("model=tiny", "hw=cpu2", "hw.processes=3", "train.global_batch=12")
GPU = machine("4090", 4)
NAMES = ["card 4", "card 5", "card 6", "card 7"]
FAULT = """
import os
if os.environ.get("RANK") == "{rank}":
    import torch.distributed as dist
    {body}
"""
CORRUPT = """real = dist.all_to_all_single
    def copies(received, *rest, **named):
        real(received, *rest, **named)
        received[5] += 1
        received[-5] += 1
    dist.all_to_all_single = copies"""
SLEEP = """import time
    real = dist.all_reduce
    dist.all_reduce = lambda *rest, **named: time.sleep(100)"""
DIE = """def die(*_, **__): raise RuntimeError("NCCL Error 2: unhandled system error")
    dist.init_process_group = die"""


def broken(folder: Path, monkeypatch: pytest.MonkeyPatch, rank: int, body: str) -> None:
    """Give one rank a fault, from outside."""
    (folder / "sitecustomize.py").write_text(FAULT.format(rank=rank, body=body))
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")


def text(experiment: Experiment, limit_s: float = 60) -> tuple[State, str]:
    [line] = allreduce.lines(experiment, limit_s)
    return line.state, f"{line.found}: {line.advice}"


def test_right_values(here: Path) -> None:
    state, found = text(resolved("model=tiny", "hw=cpu2"))
    assert state is State.ok, found
    assert found.startswith("2 ranks, every value right, ")


def test_wrong_copies_are_found_and_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(here, monkeypatch, 1, CORRUPT)
    state, found = text(resolved(*THREE))
    assert state is State.fail
    assert "copies of rank 1 arrive wrong (rank 0 to rank 1, rank 2 to rank 1)" in found


def test_a_rank_that_hangs_is_ended(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bounded time, and nothing is left of it."""
    broken(here, monkeypatch, 1, SLEEP)
    started = time.monotonic()
    state, found = text(resolved("model=tiny", "hw=cpu2"), limit_s=15)
    assert state is State.fail
    assert "no answer within 15 s from rank 0, rank 1" in found
    assert time.monotonic() - started < 30
    left = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    assert not [line for line in left if b"allreduce_worker" in line]


def test_a_rank_that_dies(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(here, monkeypatch, 0, DIE)
    state, found = text(resolved("model=tiny", "hw=cpu2"))
    assert state is State.fail
    assert "NCCL Error 2: unhandled system error" in found


def test_one_process_has_nothing_to_exchange(here: Path) -> None:
    assert text(resolved("model=tiny", "hw=cpu"))[0] is State.skip
    assert text(resolved("model=tiny", "hw=4090x4", on=machine("4090", 2)))[0] is State.skip


@pytest.mark.parametrize(
    ("wrong", "sums", "expected"),
    [
        ([[], [], [], []], [0, 0, 0, 0], None),
        ([[2], [2], [0, 1, 3], [2]], [9, 9, 9, 9], "copies of card 6 arrive wrong"),
        ([[1], [0], [], []], [1, 1, 0, 0], "copies of card 4 or card 5 arrive wrong"),
        ([[], [], [], []], [0, 7, 0, 0], "wrong sums on card 5"),
    ],
)
def test_blame(wrong: list[list[int]], sums: list[int], expected: str | None) -> None:
    results = {rank: {"wrong": wrong[rank], "wrong_sums": sums[rank]} for rank in range(4)}
    found = allreduce.blame(results, NAMES)
    assert found == expected if expected is None else (found or "").startswith(expected)


RIGHT, SLOW = Outcome(problem=None, gbs=20.0), Outcome(problem=None, gbs=5.0)
WRONG = Outcome(problem="copies of card 2 arrive wrong (card 0 to card 2)")


@pytest.mark.parametrize(
    ("profile", "bare", "state", "words"),
    [
        (RIGHT, None, State.ok, "every value right, 20.0 GB/s"),
        (RIGHT, RIGHT, State.ok, "20.0 GB/s without"),
        (SLOW, RIGHT, State.warn, "hw=auto, without the profile's NCCL variables, is faster"),
        (RIGHT, WRONG, State.warn, "without it: copies of card 2 arrive wrong (card 0 to card 2): keep the profile's"),
        (WRONG, RIGHT, State.fail, "use hw=auto"),
        (WRONG, WRONG, State.fail, "leave that card out with hw.devices"),
        (WRONG, None, State.fail, "leave that card out with hw.devices"),
    ],
)
def test_judge(here: Path, profile: Outcome, bare: Outcome | None, state: State, words: str) -> None:
    [line] = allreduce.judge(resolved("model=tiny", "hw=4090x4", on=GPU), profile, bare)
    assert line.state is state
    assert words in f"{line.found}: {line.advice}"


def test_advice_where_the_profile_leaves_peers_on(here: Path) -> None:
    experiment = resolved("model=tiny", "hw=auto", on=GPU)
    [line] = allreduce.judge(experiment, WRONG, None)
    assert line.advice.startswith("try +hw.env.NCCL_P2P_DISABLE=1, or ")
    on_cpu = dataclasses.replace(experiment, hw=resolved("model=tiny", "hw=cpu2").hw)
    assert "hw=cpu" in allreduce.judge(on_cpu, WRONG, None)[0].advice


def test_names(here: Path) -> None:
    assert allreduce.device_names(resolved("model=tiny", "hw=4090x4", on=GPU)) == [f"card {n}" for n in range(4)]
    assert allreduce.device_names(resolved("model=tiny", "hw=cpu2")) == ["rank 0", "rank 1"]
