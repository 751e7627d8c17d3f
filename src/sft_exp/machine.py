"""What this machine has, read without importing torch."""

import importlib.metadata
import importlib.util
import os
import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Card:
    """One GPU as the driver describes it."""

    index: int
    name: str
    capability: float
    memory_gib: float
    uuid: str = ""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Cards, driver and torch build."""

    cards: list[Card] = field(default_factory=list)
    driver: str | None = None
    driver_cuda: float | None = None
    """Newest CUDA version the driver can run."""
    torch: str | None = None
    """Installed torch, such as 2.13.0+cu130."""
    torch_cuda: float | None = None
    """CUDA version torch was built for; null for a CPU build."""
    cores: int = 1
    memory_gib: float | None = None
    """Memory of the host in GiB."""

    def usable(self) -> list[Card]:
        """Cards left by CUDA_VISIBLE_DEVICES, in its order; none where torch has no CUDA."""
        if self.torch_cuda is None:
            return []
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return self.cards
        names = {name: card for card in self.cards for name in (str(card.index), card.uuid) if name}
        return [names[item.strip()] for item in visible.split(",") if item.strip() in names]


def look() -> Machine:
    """Read the driver through NVML and torch's build from its files, in milliseconds; importing torch takes seconds."""
    cards, driver, driver_cuda = _nvml()
    version, cuda = torch_build()
    return Machine(
        cards=cards, driver=driver, driver_cuda=driver_cuda, torch=version, torch_cuda=cuda,
        cores=len(os.sched_getaffinity(0)), memory_gib=host_memory_gib(),
    )  # fmt: skip


def host_memory_gib() -> float | None:
    """Memory of this machine in GiB, or less where a control group (a container) limits it."""
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        limit = Path("/sys/fs/cgroup/memory.max")
        text = limit.read_text(encoding="utf-8").strip() if limit.exists() else "max"
    except (OSError, ValueError):
        return None
    return min(pages * size, int(text) if text.isdigit() else pages * size) / 2**30


def _nvml() -> tuple[list[Card], str | None, float | None]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return [], None, None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()
        cards = [_card(index, handle) for index, handle in enumerate(handles)]
        return cards, str(pynvml.nvmlSystemGetDriverVersion()), cuda // 1000 + cuda % 1000 // 10 / 10
    finally:
        pynvml.nvmlShutdown()


def _card(index: int, handle: object) -> Card:
    import pynvml

    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Card(
        index=index,
        name=str(pynvml.nvmlDeviceGetName(handle)),
        capability=float(f"{major}.{minor}"),
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        memory_gib=round(pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30, 1),
    )


def torch_build() -> tuple[str | None, float | None]:
    """Version and CUDA version of the installed torch, from torch/version.py."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None, None
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    cuda = re.search(r"^cuda(?::[^=]*)?\s*=\s*'([\d.]+)'", text, re.M)
    return importlib.metadata.version("torch"), float(".".join(cuda[1].split(".")[:2])) if cuda else None
