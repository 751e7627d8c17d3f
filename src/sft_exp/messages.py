"""Turns of a conversation in any known spelling -> messages with one of four roles."""

import json
from collections.abc import Mapping
from typing import Any

from sft_exp.conversation import BadRow, Message
from sft_exp.fields import json_of, kind_of, list_of, renamed, text_of

TURN_KEYS = {"role", "content", "from", "value", "tool_calls"}
ROLES = ("system", "user", "assistant", "tool")
_ALIASES = {
    **{role: role for role in ROLES},
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "function_call": "assistant",
    "function": "tool",
    "observation": "tool",
}


def message(turn: Any, at: int, role_map: Mapping[str, str], names: Mapping[str, str]) -> Message:
    """Make a message of one turn; `at` counts turns from 1 for the report."""
    if not isinstance(turn, dict):
        raise BadRow("wrong_type", f"message {at} is {kind_of(turn)}, not an object")
    turn = renamed(turn, names)
    name = turn.get("role", turn.get("from"))
    role = _role(name, at, role_map)
    content = turn.get("content", turn.get("value"))
    calls = list_of(turn.get("tool_calls"), f"tool_calls of message {at}") if role == "assistant" else []
    if name == "function_call" and isinstance(content, str) and not calls:
        calls, content = [json_of(content, f"the function call of message {at}")], None
    text = text_of(content, f"content of message {at}", required=role in ("user", "assistant") and not calls)
    made: Message = {"role": role, "content": text}
    if calls:
        made["tool_calls"] = [_call(call, at) for call in calls]
    for key in ("tool_call_id", "name", "reasoning_content"):
        if turn.get(key):
            made[key] = text_of(turn[key], f"{key} of message {at}")
    return made


def _role(name: Any, at: int, role_map: Mapping[str, str]) -> str:
    if not isinstance(name, str):
        raise BadRow("wrong_type", f"the role of message {at} is {kind_of(name)}, not text")
    role = role_map.get(name) or _ALIASES.get(name.strip().lower())
    if role is None:
        # Hydra's override grammar takes plain words only as keys.
        hint = f"+dataset.role_map.{name}=user" if name.isidentifier() and name.isascii() else "dataset.role_map"
        raise BadRow("unknown_role", f"message {at} has the role '{name[:60]}'; say what it is, such as by {hint}")
    return role


def _call(call: Any, at: int) -> dict[str, Any]:
    """A tool call in the nested form templates read, its arguments an object where they are one."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRow("wrong_type", f"a tool call of message {at} has no function name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else arguments
    arguments = {} if arguments is None else arguments
    made = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return {**made, "id": call["id"]} if isinstance(call.get("id"), str) else made


def merged(messages: list[Message]) -> list[Message]:
    """Join neighbours of the same role; results of parallel tool calls stay apart."""
    joined: list[Message] = []
    for new in messages:
        last = joined[-1] if joined else None
        called = last is not None and "tool_calls" in last
        joins = last is not None and last["role"] == new["role"] != "tool"
        if last is None or not joins or (called and "tool_calls" not in new):
            joined.append(new)
            continue
        parts = [text for text in (last["content"], new["content"]) if text]
        calls = [*last.get("tool_calls", []), *new.get("tool_calls", [])]
        joined[-1] = {**last, **new, "content": "\n\n".join(parts), **({"tool_calls": calls} if calls else {})}
    return joined
