"""`zero.json`: a DeepSpeed configuration file that a user already has."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from sft_exp.schema import Zero


def folded(zero: Zero) -> Zero:
    """The file's content in `zero.extra`, so that the run records it; what is typed there wins.

    A file that cannot be read is left for `check` to name.
    """
    if zero.json is None:
        return zero
    content = _read(zero.json)
    if isinstance(content, str):
        return zero
    return dataclasses.replace(zero, json=None, extra=merge(content, zero.extra))


def problem(zero: Zero) -> str | None:
    """One sentence if the file cannot be read."""
    content = {} if zero.json is None else _read(zero.json)
    return content if isinstance(content, str) else None


def merge(base: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """`base` with `extra` laid over it, block by block."""
    merged = dict(base)
    for key, value in extra.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def _read(name: str) -> dict[str, Any] | str:
    """Content of the file, or the sentence on what is wrong with it."""
    try:
        content = json.loads(Path(name).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        return f"zero.json={name} cannot be read ({error.strerror}): give a DeepSpeed configuration file."
    except ValueError as error:
        return f"zero.json={name} is not JSON ({error}): mend it, or give another file."
    if not isinstance(content, dict):
        return f"zero.json={name} holds no mapping: give a DeepSpeed configuration file, {{...}}."
    return content
