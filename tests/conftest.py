"""What every test gets: an environment without the user's settings, a cache of its own, typed requests."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import composing

LEFTOVERS = re.compile(
    r"(CUDA|NCCL|MLFLOW|HF|HUGGINGFACE|TRANSFORMERS|HYDRA|SFT_EXP|DEEPSPEED|DS|ACCELERATE|FSDP|TORCH|PYTORCH|OMP|MKL"
    r"|TORCHELASTIC|ROLE|MASTER|GROUP|SLURM)_\w+|GIT_(DIR|WORK_TREE|INDEX_FILE)|(LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE"
    r"|TOKENIZERS_PARALLELISM|(https?|all|no)_proxy",
    re.I,
)
"""Variables that would change what is tested."""


def pytest_configure() -> None:
    """Clean the environment before any test module is imported: libraries read theirs when they are."""
    own_cores()
    for name in [name for name in os.environ if LEFTOVERS.fullmatch(name)]:
        del os.environ[name]


def own_cores() -> None:
    """Give each of several workers (pytest-xdist) its own cores: threads of two runs on one core slow each other."""
    cores = sorted(os.sched_getaffinity(0))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, cores[worker::workers] or {cores[worker % len(cores)]})


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cache of converted models and prepared rows, shared by the whole session."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    folder.mkdir(exist_ok=True)
    os.environ["SFT_EXP_CACHE"] = str(folder)
    return folder


@pytest.fixture(autouse=True)
def same_environment(cache: Path) -> Iterator[None]:
    """Take back what a test, or the code it runs, has put into the environment."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def compose(here: Path) -> composing.Compose:
    """`compose("model=tiny", "train.seed=1")`, with outputs below an empty working directory."""
    return composing.compose
