"""Turns of a conversation in any known spelling -> messages with one of four roles."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sft_exp.conversation import BadRow, Message
from sft_exp.fields import json_of, kind_of, list_of, renamed, text_of

ROLE_KEYS = ("role", "from", "speaker")
"""Keys under which a turn names its role; the first one that is not null counts."""
_CONTENT_KEYS = ("content", "value", "text")
TURN_KEYS = {*ROLE_KEYS, *_CONTENT_KEYS, "tool_calls"}
ROLES = ("system", "user", "assistant", "tool")
_PAIRS = (("human", "assistant"), ("input", "output"))
"""Keys of turns that hold a question and its answer, as in Firefly's and XTuner's data."""
_CALLS = ("function_call", "tool_call")
"""Roles of turns that are a tool call, or a list of them, as JSON."""
_ALIASES = {
    alias: role
    for role, aliases in {
        "system": ("system", "developer"),
        "user": ("user", "human", "prompter"),
        "assistant": ("assistant", "gpt", "chatgpt", "bing", "bard", "bot", "chatbot", "model", "ai", *_CALLS),
        "tool": ("tool", "tool_response", "function", "function_response", "observation", "ipython", "environment"),
    }.items()
    for alias in aliases
}


def unfolded(turn: Any, names: Mapping[str, str]) -> list[Any]:
    """The turn as it is, or its system text, question and answer as turns of their own."""
    if not isinstance(turn, dict) or _first(named := renamed(turn, names), ROLE_KEYS) is not None:
        return [turn]
    for asked, answered in _PAIRS:
        if asked in named and answered in named:
            texts = {"system": named.get("system"), "user": named[asked], "assistant": named[answered]}
            return [{"from": role, "value": text} for role, text in texts.items() if text or role != "system"]
    return [turn]


def message(turn: Any, at: int, role_map: Mapping[str, str], names: Mapping[str, str]) -> Message:
    """Make a message of one turn; `at` counts turns from 1 for the report."""
    if not isinstance(turn, dict):
        raise BadRow("wrong_type", f"message {at} is {kind_of(turn)}, not an object")
    turn = renamed(turn, names)
    name = _first(turn, ROLE_KEYS)
    role = _role(name, at, role_map)
    content = _first(turn, _CONTENT_KEYS)
    calls = _calls(turn, at) if role == "assistant" else []
    if _plain(name) in _CALLS and content and not calls:
        content = json_of(content, f"the tool call of message {at}") if isinstance(content, str) else content
        calls, content = content if isinstance(content, list) else [content], None
    text = text_of(content, f"content of message {at}", required=role in ("user", "assistant") and not calls)
    made: Message = {"role": role, "content": text}
    if calls:
        made["tool_calls"] = [_call(call, at) for call in calls]
    for key in ("tool_call_id", "name", "reasoning_content"):
        if turn.get(key):
            made[key] = text_of(turn[key], f"{key} of message {at}")
    return made


def _first(turn: dict[str, Any], keys: Iterable[str]) -> Any:
    return next((turn[key] for key in keys if turn.get(key) is not None), None)


def _plain(name: str) -> str:
    return name.strip().lower()


def _role(name: Any, at: int, role_map: Mapping[str, str]) -> str:
    if not isinstance(name, str):
        raise BadRow("wrong_type", f"the role of message {at} is {kind_of(name)}, not text")
    role = role_map.get(name) or _ALIASES.get(_plain(name))
    if role is None:
        # Hydra's override grammar takes plain words only as keys.
        hint = f"+dataset.role_map.{name}=user" if name.isidentifier() and name.isascii() else "dataset.role_map"
        raise BadRow("unknown_role", f"message {at} has the role '{name[:60]}'; say what it is, such as by {hint}")
    return role


def _calls(turn: dict[str, Any], at: int) -> list[Any]:
    calls = list_of(turn.get("tool_calls"), f"tool_calls of message {at}")
    single = turn.get("function_call")  # the form that OpenAI's `tool_calls` replaced
    return calls or ([single] if isinstance(single, dict) else [])


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
