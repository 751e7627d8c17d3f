"""Cards and links, as an NVML of our own answers; and the profile that fits them."""

import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from composing import NO_CARDS, machine, resolved
from sft_exp import profiles
from sft_exp.doctor import cards, nvml, topology
from sft_exp.doctor.line import Line, State
from sft_exp.doctor.nvml import CardState, Driver

GIB = 2**30
FOUR = machine("4090", 4)


class Refused(Exception):
    """NVMLError."""


def fake_nvml(monkeypatch: pytest.MonkeyPatch, count: int, **answers: Any) -> None:
    """Put an NVML with `count` cards in place of the driver's; an answer may be a function of the card."""

    def answer(name: str, default: Any) -> Any:
        given = answers.get(name, default)

        def call(*arguments: int) -> Any:
            result = given(*arguments) if callable(given) else given
            if isinstance(result, Exception):
                raise result
            return result

        return call

    memory = types.SimpleNamespace(total=24 * GIB, free=24 * GIB, used=0)
    calls = {
        "nvmlInit": answer("init", None), "nvmlShutdown": answer("shutdown", None),
        "nvmlDeviceGetCount": answer("count", count), "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": answer("memory", memory), "nvmlDeviceGetNvLinkState": answer("link", Refused()),
        "nvmlDeviceGetComputeRunningProcesses": answer("processes", []),
        "nvmlDeviceGetCurrPcieLinkWidth": answer("width", 16), "nvmlDeviceGetMaxPcieLinkWidth": answer("most", 16),
        "nvmlDeviceGetP2PStatus": answer("peer", 0), "NVMLError": Refused,
    }  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", types.SimpleNamespace(**calls))


def links(*typed: str) -> list[Line]:
    experiment = resolved("model=tiny", *typed, on=FOUR)
    return topology.lines(experiment, cards.chosen(experiment, FOUR), nvml.read())


def states(lines: list[Line]) -> list[State]:
    return [line.state for line in lines]


def test_no_driver(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    fake_nvml(monkeypatch, 0, init=Refused())
    assert nvml.read() == Driver()
    experiment = resolved("model=tiny", "hw=4090x1", on=NO_CARDS)
    [line] = cards.lines(experiment, NO_CARDS, Driver())
    assert (line.state, line.found) == (State.skip, "none that could be used; no NVIDIA driver answers")
    assert states(topology.lines(experiment, [], Driver())) == [State.skip]


def test_idle_cards(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    fake_nvml(monkeypatch, 4)
    lines = cards.lines(resolved("model=tiny", "hw=4090x4", on=FOUR), FOUR, nvml.read())
    assert states(lines) == [State.ok] * 4
    assert lines[0].found == "NVIDIA GeForce RTX 4090, compute capability 8.9, 24.0 of 24.0 GiB free"


def test_a_card_that_is_used(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    """The user's number and name, and the cards that could be taken instead."""
    process = types.SimpleNamespace(pid=os.getpid(), usedGpuMemory=20 * GIB)
    used = types.SimpleNamespace(total=24 * GIB, free=4 * GIB)
    idle = types.SimpleNamespace(total=24 * GIB, free=24 * GIB)
    fake_nvml(
        monkeypatch, 4, processes=lambda card: [process] if card == 1 else [],
        memory=lambda card: used if card == 1 else idle,
    )  # fmt: skip
    experiment = resolved("model=tiny", "hw=4090x1", "hw.devices=[1]", on=FOUR)
    [line] = cards.lines(experiment, FOUR, nvml.read())
    assert line.state is State.warn
    assert f"used by pid {os.getpid()} (" in line.found
    assert ", 20.0 GiB)" in line.found
    assert line.advice == "take idle cards with 'hw.devices=[0, 2, 3]'"


def test_a_card_without_room(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    """Others leave 4 GiB, and the run needs more."""
    used = types.SimpleNamespace(total=24 * GIB, free=4 * GIB)
    fake_nvml(monkeypatch, 4, memory=used)
    experiment = resolved("model=qwen0.5b", "hw=4090x1", on=FOUR)
    [_, line] = cards.lines(experiment, FOUR, nvml.read())
    assert (line.name, line.state) == ("memory in use", State.fail)
    assert line.found.startswith("card 0 has 4.0 of 24.0 GiB free and this run needs about ")
    assert line.advice == "wait, or ask who started it, or start it anyway with hw.memory_check=false"
    assert len(cards.lines(resolved("model=tiny", "hw=4090x1", on=FOUR), FOUR, nvml.read())) == 1


def test_a_user_in_another_container(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    hidden = types.SimpleNamespace(total=24 * GIB, free=4 * GIB)
    fake_nvml(monkeypatch, 4, memory=hidden, processes=Refused())
    [line] = cards.lines(resolved("model=tiny", "hw=4090x1", on=FOUR), FOUR, nvml.read())
    assert "a process that the driver does not show" in line.found
    assert line.advice == "wait, or ask who started it"
    unseen = types.SimpleNamespace(pid=2**22 + 1, usedGpuMemory=None)
    fake_nvml(monkeypatch, 4, memory=hidden, processes=[unseen])
    [line] = cards.lines(resolved("model=tiny", "hw=4090x1", on=FOUR), FOUR, nvml.read())
    assert "pid 4194305 (in another container)" in line.found


def test_links_of_a_4090(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    fake_nvml(monkeypatch, 4, peer=5)
    [between, host] = links("hw=4090x4")
    assert (between.state, between.found) == (State.ok, "no NVLink; peer-to-peer copies turned off by the profile")
    assert (host.state, host.found) == (State.ok, "card 0 x16, card 1 x16, card 2 x16, card 3 x16")
    [between, _] = links("hw=4090x4", "hw.env.NCCL_P2P_DISABLE='0'", "hw.devices=[1,3]", "hw.processes=2")
    assert between.state is State.warn
    assert "between cards 1-3 (not supported)" in between.found
    assert "/dev/shm" in between.advice


def test_links_with_nvlink(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    fake_nvml(monkeypatch, 4, link=lambda card, link: 1 if link < 4 else 0)
    [between, _] = links("hw=auto")
    assert (between.state, between.found) == (State.ok, "NVLink (4 per card); peer-to-peer copies between all cards")
    [between, _] = links("hw=4090x4")
    assert between.state is State.warn
    assert "hw=4090x4 turns peer-to-peer copies off" in between.found


def test_a_narrow_slot(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    fake_nvml(monkeypatch, 4, width=lambda card: 4 if card == 2 else 16)
    assert [(line.state, line.found) for line in links("hw=4090x4")][1] == (State.warn, "card 2 x4 of x16")
    fake_nvml(monkeypatch, 4, width=Refused())
    assert states(links("hw=4090x4"))[1] is State.skip
    assert states(links("hw=4090x1"))[0] is State.skip


def test_the_profile_line(here: Path) -> None:
    experiment = resolved("model=tiny", "hw=4090x4", on=FOUR)
    [line] = cards.profile(experiment, FOUR)
    assert line.state is State.ok
    assert "4 x cuda, bf16" in line.found
    [line] = cards.profile(resolved("model=tiny", "hw=v100", on=FOUR), FOUR)
    assert line.state is State.fail
    assert line.advice.startswith("use hw=4090x1")


@pytest.mark.parametrize(
    ("card", "count", "expected"),
    [("4090", 4, "4090x4"), ("4090", 1, "4090x1"), ("4090", 3, "4090x1"), ("h200", 8, "h200x2"), ("v100", 2, "v100")],
)
def test_matching_profile(card: str, count: int, expected: str) -> None:
    assert profiles.matching(machine(card, count).cards) == expected


def test_no_profile_matches() -> None:
    assert profiles.matching([]) == "auto"
    assert profiles.matching([*machine("4090").cards, *machine("h200").cards]) == "auto"


def test_free() -> None:
    assert cards.free(CardState(index=0, total_gib=24, free_gib=23.5))
    assert not cards.free(CardState(index=0, total_gib=24, free_gib=20))
