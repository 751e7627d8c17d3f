"""Whether the model hub is needed, and whether it answers."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from sft_exp import mixture
from sft_exp.checkpoint import looks_local
from sft_exp.schema import DatasetKind, Experiment, Weights

DEFAULT = "https://huggingface.co"
TRUE = {"1", "ON", "YES", "TRUE"}
"""What huggingface_hub takes for yes."""


def needed(experiment: Experiment) -> list[str]:
    """Repositories of the hub that the run reads, as their cache folders are named: models--ORG--NAME."""
    model, dataset = experiment.model, experiment.dataset
    paths = [model.tokenizer]
    if not model.gguf and model.weights is Weights.pretrained:
        paths.append(model.path)
    found = [f"models--{path.replace('/', '--')}" for path in paths if path and not looks_local(path)]
    for part in mixture.parts(dataset).values():
        if part.kind is DatasetKind.hub and part.path and not looks_local(part.path):
            found.append(f"datasets--{part.path.replace('/', '--')}")
    return found


def offline(env: Mapping[str, str]) -> bool:
    """Whether the environment forbids the hub."""
    return any(env.get(name, "").upper() in TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def cached(repository: str, env: Mapping[str, str]) -> bool:
    """Whether the cache has a snapshot; which files it holds is not looked at."""
    home = Path(env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    cache = Path(env.get("HF_HUB_CACHE") or home / "hub").expanduser()
    return any(cache.glob(f"{repository}/snapshots/*"))


def no_answer(env: Mapping[str, str], timeout_s: float = 3.0) -> str | None:
    """Why the hub, or the proxy before it, does not answer; None if it does."""
    endpoint = urlsplit(env.get("HF_ENDPOINT") or DEFAULT)
    proxy = env.get(f"{endpoint.scheme}_proxy") or env.get(f"{endpoint.scheme.upper()}_PROXY")
    parts = urlsplit(proxy) if proxy else endpoint
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout_s).close()
    except OSError as error:
        return f"{'the proxy ' if proxy else ''}{parts.hostname}:{port} does not answer ({error})"
    return None


def endpoint(env: Mapping[str, str]) -> str:
    """Address of the hub, without what a user may have put before the host."""
    parts = urlsplit(env.get("HF_ENDPOINT") or os.environ.get("HF_ENDPOINT") or DEFAULT)
    return f"{parts.scheme}://{parts.hostname}"
