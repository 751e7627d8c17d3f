"""What the driver knows beyond `machine.look`: free memory, users, links. All numbers are read, none is judged."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GIB = 2**30
PEER_STATES = {
    0: "ok", 1: "not with this chipset", 2: "not with this card", 3: "not across these PCIe hubs",
    4: "turned off in the driver", 5: "not supported",
}  # fmt: skip
READ = 0
"""Index of reading in NVML's peer-to-peer states; pynvml's own constant is a tuple by mistake."""
MOST_LINKS = 18
"""NVLinks of an H100 or H200."""


@dataclass(frozen=True, kw_only=True)
class User:
    """A process that holds memory of a card."""

    pid: int
    name: str
    used_gib: float | None = None


@dataclass(frozen=True, kw_only=True)
class CardState:
    """One card at this moment."""

    index: int
    total_gib: float
    free_gib: float
    users: list[User] = field(default_factory=list)
    links: int = 0
    """Active NVLinks."""
    pcie_width: int | None = None
    pcie_most: int | None = None


@dataclass(frozen=True, kw_only=True)
class Driver:
    """All cards and, for each pair of them, whether one reads the other's memory."""

    cards: dict[int, CardState] = field(default_factory=dict)
    peers: dict[tuple[int, int], str] = field(default_factory=dict)
    """`ok`, or why there are no peer-to-peer copies."""


def read() -> Driver:
    """Ask NVML; empty where no driver answers."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return Driver()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return Driver(
            cards={index: _card(index, handle) for index, handle in enumerate(handles)},
            peers={
                (a, b): _peer(handles[a], handles[b])
                for a in range(len(handles))
                for b in range(len(handles))
                if a != b
            },
        )
    finally:
        pynvml.nvmlShutdown()


def _maybe(call: Callable[..., Any], *arguments: object) -> Any:
    """Answer, or None where the card or a container does not give it."""
    import pynvml

    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None


def _card(index: int, handle: object) -> CardState:
    import pynvml

    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    users = _maybe(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    states = [_maybe(pynvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(MOST_LINKS)]
    return CardState(
        index=index,
        total_gib=memory.total / GIB,
        free_gib=memory.free / GIB,
        users=[_user(process) for process in users],
        links=sum(state == 1 for state in states),
        pcie_width=_maybe(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        pcie_most=_maybe(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
    )


def _user(process: Any) -> User:
    used = process.usedGpuMemory
    return User(pid=process.pid, name=_name(process.pid), used_gib=None if used is None else used / GIB)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return "in another container"


def _peer(one: object, other: object) -> str:
    import pynvml

    state = _maybe(pynvml.nvmlDeviceGetP2PStatus, one, other, READ)
    return "unknown" if state is None else PEER_STATES.get(state, "unknown")
