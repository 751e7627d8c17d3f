"""What makes a run comparable: code, packages, machine and environment, without anything secret."""

import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sft_exp.machine import Machine
from sft_exp.request import to_plain

PACKAGES = (
    "sft_exp", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "deepspeed", "bitsandbytes",
    "tokenizers", "mlflow", "hydra-core", "omegaconf",
)  # fmt: skip
VARIABLES = re.compile(
    r"(CUDA|NCCL|OMP|MKL|TORCH|PYTORCH|GLOO|DS|ACCELERATE)_\w+"
    r"|HF_(ENDPOINT|HOME|HUB_OFFLINE|HUB_CACHE|DATASETS_\w+)|TRANSFORMERS_OFFLINE|TOKENIZERS_PARALLELISM"
    r"|(https?|all|no)_proxy",
    re.I,
)
"""Variables worth recording; everything else stays out, since an environment holds secrets."""
DIFF_LIMIT = 5_000_000
"""Characters of a diff that are kept."""


def versions() -> dict[str, str]:
    """Installed versions of the packages that decide a result."""
    return {"python": platform.python_version(), **installed(PACKAGES)}


def installed(names: Iterable[str]) -> dict[str, str]:
    """Versions of those packages that are there."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def freeze() -> str:
    """All installed packages, as `pip freeze` lists them."""
    lines = {f"{item.metadata['Name']}=={item.version}" for item in importlib.metadata.distributions()}
    return "\n".join(sorted(lines, key=str.lower)) + "\n"


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that change a run, with credentials cut out of addresses."""
    return {key: redact(value) for key, value in sorted(env.items()) if VARIABLES.fullmatch(key)}


def redact(text: str) -> str:
    """`text` without user and password in an address and without Hugging Face tokens."""
    text = re.sub(r"hf_[A-Za-z0-9]{20,}", "hf_***", text)
    return re.sub(r"(//)[^/\s]*@", r"\1", text)


def git(folder: Path) -> tuple[dict[str, Any], str]:
    """Commit, branch and dirtiness of the repository around `folder`, and its diff; empty outside of one."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {}, ""
    status = _git(folder, "status", "--porcelain") or ""
    diff = _git(folder, "diff", "HEAD") or ""
    untracked = [line[3:] for line in status.splitlines() if line.startswith("??")]
    facts = {
        "commit": commit.strip(),
        "branch": (_git(folder, "rev-parse", "--abbrev-ref", "HEAD") or "").strip(),
        "dirty": bool(status.strip()),
        "untracked": untracked[:100],
    }
    return facts, diff[:DIFF_LIMIT]


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def code_folder() -> Path:
    """Where the code comes from: the checkout of this package, else the working directory."""
    here = Path(__file__).resolve().parent
    return here if _git(here, "rev-parse", "HEAD") and "site-packages" not in here.parts else Path.cwd()


def collect(machine: Machine, argv: list[str], overrides: list[str]) -> tuple[dict[str, Any], str]:
    """The record and the diff of one run."""
    facts, diff = git(code_folder())
    record = {
        "argv": ["python", "-m", "sft_exp", *map(redact, argv)],
        "overrides": [redact(override) for override in overrides],
        "git": facts,
        "versions": versions(),
        "machine": {
            "host": platform.node(), "system": platform.platform(), "cores": machine.cores,
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "driver": machine.driver, "cards": [to_plain(card) for card in machine.cards],
        },
        "environment": environment(os.environ),
    }  # fmt: skip
    return record, diff
