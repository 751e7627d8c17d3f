"""Values of a row's fields: text, lists and JSON in the shapes that data sets write them in."""

import json
from collections.abc import Mapping
from typing import Any

from sft_exp.conversation import BadRow


def renamed(row: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The row with what stands under the old names also under the new ones."""
    return {**row, **{new: row[old] for old, new in names.items() if old in row}} if names else row


def text_of(value: Any, what: str, *, required: bool = False) -> str:
    """Text, or the joined text parts of a list; null is empty."""
    if isinstance(value, list):
        value = "".join(_part(part, what) for part in value)
    if value is not None and not isinstance(value, str):
        raise BadRow("wrong_type", f"{what} is {kind_of(value)}, not text")
    if required and (value is None or not value.strip()):
        raise BadRow("empty_content", f"{what} is {'null' if value is None else 'empty'}")
    return value or ""


def _part(part: Any, what: str) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str) and part.get("type", "text") == "text":
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else None
    found = f"a part of type {kind!r}" if kind else kind_of(part)
    raise BadRow("wrong_type", f"{what} has {found}; only text is trained")


def list_of(value: Any, what: str) -> list[Any]:
    """A list, also one written as JSON text, as many tables hold it; null and empty text are empty."""
    if isinstance(value, str) and value.strip():
        value = json_of(value, what)
    if not value and not isinstance(value, dict | bool | int | float):
        return []
    if not isinstance(value, list):
        raise BadRow("wrong_type", f"{what} is {kind_of(value)}, not a list")
    return value


def json_of(text: str, what: str) -> Any:
    """What the text means as JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRow("invalid_json", f"{what} is text that is not JSON ({str(error).split(';')[0]})") from error


def kind_of(value: Any) -> str:
    """What a report calls a value of the wrong type."""
    names = {dict: "an object", list: "a list", type(None): "null"}
    return names.get(type(value)) or f"{str(value)[:40]!r} ({type(value).__name__})"
