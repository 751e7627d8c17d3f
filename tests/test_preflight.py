"""What a run looks at before it starts: the doctor's own lines, in well under five seconds."""

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import sft_exp
from composing import NO_CARDS, machine, resolved
from sft_exp import check, links, preflight, run
from sft_exp.doctor import allreduce_worker, command, leftover_runs, nvml
from sft_exp.doctor.line import warn
from sft_exp.doctor.nvml import CardState, Driver
from sft_exp.errors import ConfigError
from sft_exp.host import GIB, Host
from sft_exp.machine import look
from sft_exp.resolve import resolve

FOUR = machine("4090", 4)
HOST = Host(total=64 * GIB, available=60 * GIB, shm_free=GIB // 16, locked=65536)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    """No runs of other people, and a home without files."""
    monkeypatch.setattr(leftover_runs, "ranks", lambda: iter(()))
    monkeypatch.setenv("HOME", str(here))


def cards(monkeypatch: pytest.MonkeyPatch, free: float) -> None:
    """Cards of which the first has so much free memory."""
    states = {i: CardState(index=i, total_gib=24, free_gib=24 if i else free) for i in range(4)}
    monkeypatch.setattr(nvml, "read", lambda: Driver(cards=states))


def test_a_healthy_machine_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    cards(monkeypatch, 24)
    typed = ("model=qwen0.5b", "model.weights=random", "model.path=null", "hw=4090x1")
    found = preflight.notes(resolved(*typed, on=FOUR), FOUR)
    assert found == []


def test_it_takes_no_time() -> None:
    """All that a run checks in its parent, on this machine."""
    asked = resolved("model=tiny", "hw=cpu2", "zero=2_offload", "tracking=none")
    started = time.monotonic()
    here = look()
    check.check(resolve(asked, here), here)
    preflight.notes(asked, here)
    assert time.monotonic() - started < 5


def test_a_card_that_is_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cards(monkeypatch, 20)
    experiment = resolved("model=tiny", "hw=4090x1", "model.weights=random", on=FOUR)
    [line] = [line for line in preflight.notes(experiment, FOUR) if line.startswith("card 0")]
    assert "20.0 of 24.0 GiB free" in line
    assert line.endswith("take idle cards with 'hw.devices=[1, 2, 3]'.")


def test_a_card_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cards(monkeypatch, 4)
    typed = ("model=qwen0.5b", "model.weights=random", "model.path=null", "hw=4090x1")
    with pytest.raises(ConfigError) as caught:
        preflight.notes(resolved(*typed, on=FOUR), FOUR)
    assert "card 0 has 4.0 of 24.0 GiB free and this run needs about" in str(caught.value)
    assert "'hw.devices=[1, 2, 3]', or start it anyway with hw.memory_check=false." in str(caught.value)
    assert preflight.notes(resolved(*typed, "hw.memory_check=false", on=FOUR), FOUR)


def test_a_low_limit_and_little_shared_memory() -> None:
    typed = ("model=qwen0.5b", "model.weights=random", "model.path=null", "zero=2_offload", "zero.pin_memory=true")
    on = dataclasses.replace(FOUR, host=HOST)
    found = preflight.notes(resolved(*typed, "hw=4090x4", "hw.env.NCCL_P2P_DISABLE='0'", on=on), on)
    assert any(line.startswith("locked memory: at most 0.1 MiB") for line in found)
    assert any(line.startswith("/dev/shm: /dev/shm has 0.06 GiB free") for line in found)


def test_a_hub_that_does_not_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is not needed is not asked."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"Qwen/Qwen2\.5-0\.5B is not in the cache"):
        preflight.notes(resolved("model=qwen0.5b", "hw=cpu"), NO_CARDS)
    assert not any("hub" in line for line in preflight.notes(resolved("model=tiny", "hw=cpu"), NO_CARDS))


def test_files_that_the_launcher_reads(here: Path) -> None:
    folder = here / ".cache" / "huggingface" / "accelerate"
    folder.mkdir(parents=True)
    (folder / "default_config.yaml").write_text("mixed_precision: fp16\n")
    experiment = resolved("model=tiny", "hw=cpu2", "hw.launcher=accelerate")
    assert any("default_config.yaml fills in" in line for line in preflight.notes(experiment, NO_CARDS))


def test_ranks_without_a_parent_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftover_runs, "line", lambda: warn("left-over ranks", "2 without a parent", "end them"))
    found = preflight.notes(resolved("model=tiny", "hw=cpu"), NO_CARDS)
    assert "left-over ranks: 2 without a parent: end them." in found


def test_every_line_of_the_doctor_is_looked_at_by_a_run() -> None:
    """It is a rule of `check`, one of these, or made by the ranks."""
    by_check = {"torch", "compilers", "profile", "host memory", "disk", "tracking", "environment"}
    by_ranks = {"kernels", "pinned memory", "all-reduce"}
    experiment, here = resolved("model=tiny", "hw=cpu"), look()
    seen = {line.name for line in preflight.lines(experiment, here)}
    shown = {line.name for line in command.examine(experiment, here)}
    assert shown - {"left-over files"} == seen | by_check | by_ranks  # files are a line only where there are some


def test_a_run_shows_its_notes(capsys: pytest.CaptureFixture[str]) -> None:
    run.show(["one", "two"])
    assert capsys.readouterr().out == "note: one\nnote: two\n"


def test_wrong_values_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process stands for a rank of two; tests/test_run.py has real ones."""
    links.require(torch.device("cpu"))  # no group: nothing to exchange
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "new_group", lambda: None)
    monkeypatch.setattr(dist, "destroy_process_group", lambda group: None)
    monkeypatch.setattr(allreduce_worker, "wrong", lambda *_: (0, [1]))
    with pytest.raises(ConfigError, match="copies of rank 1 arrive wrong at rank 0"):
        links.require(torch.device("cpu"))
    monkeypatch.setattr(allreduce_worker, "wrong", lambda *_: (3, []))
    with pytest.raises(ConfigError, match="sums over all ranks arrive wrong"):
        links.require(torch.device("cpu"))
    monkeypatch.setattr(allreduce_worker, "wrong", lambda *_: (0, []))
    links.require(torch.device("cpu"))


SOURCE = Path(sft_exp.__file__).resolve().parents[1]
FAULT = """
import os
if os.environ.get("RANK") == "1":
    import torch.distributed as dist
    real = dist.all_to_all_single
    def copies(received, *rest, **more):
        real(received, *rest, **more)
        received[5] += 1
    dist.all_to_all_single = copies
"""


@pytest.mark.slow
def test_a_real_run_with_wrong_copies_never_trains(here: Path) -> None:
    """Two real ranks, one of which gets its neighbour's copies wrong."""
    (here / "sitecustomize.py").write_text(FAULT)
    done = subprocess.run(
        [sys.executable, "-m", "sft_exp", "model=tiny", "hw=cpu2", "tracking=none", "train.max_steps=2"],
        cwd=here, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": f"{here}:{SOURCE}"},
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert "copies of rank 0 arrive wrong at rank 1" in done.stderr
    assert "step " not in done.stdout
