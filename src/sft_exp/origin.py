"""Where each value of a configuration comes from."""

import re
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from sft_exp import schema
from sft_exp.request import Request, flatten, to_plain


def changed(request: Request, resolved: schema.Experiment) -> list[tuple[str, Any, str]]:
    """(key, value, source) of each value that differs from the schema's default, in the schema's order."""
    default = flatten(to_plain(schema.Experiment()))
    asked = flatten(to_plain(request.experiment))
    rows = []
    for key, value in flatten(to_plain(resolved)).items():
        if value != default.get(key):
            source = _source(request, key) if asked.get(key) == value else "decided for this machine and run"
            rows.append((key, value, source))
    return rows


def _source(request: Request, key: str) -> str:
    typed = {override.partition("=")[0].lstrip("+~") for override in request.overrides} - request.choices.keys()
    if any(key == name or key.startswith(f"{name}.") for name in typed):
        return "command line"
    for group in ("sweep", "experiment"):
        option = request.choices.get(group)
        if option and _has(_load(request, f"{group}/{option}"), key):
            return f"{group}={option}"
    group, _, rest = key.partition(".")
    option = request.choices.get(group)
    while option:
        tree = _load(request, f"{group}/{option}")
        if _has(tree, rest):
            return f"{group}={option}"
        option = _parent(tree)
    return "config.yaml"


def _load(request: Request, name: str) -> dict[str, Any]:
    for source in request.sources:
        file = Path(re.sub(r"^file://", "", source)) / f"{name}.yaml"
        if file.is_file():
            tree = OmegaConf.to_container(OmegaConf.load(file))
            return {str(key): value for key, value in tree.items()} if isinstance(tree, dict) else {}
    return {}


def _has(tree: dict[str, Any], key: str) -> bool:
    node: Any = tree
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return False
        node = node[part]
    return True


def _parent(tree: dict[str, Any]) -> str | None:
    """The option that an option file starts from."""
    names = [item for item in tree.get("defaults", []) if isinstance(item, str) and item != "_self_"]
    return names[0] if names else None
