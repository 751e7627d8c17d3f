"""One row in any known format -> one `Conversation`, the only form that the rest of the program sees.

The format is recognised row by row, by the columns that hold something; further columns are ignored.
What cannot be trained raises `BadRow` with a reason code and a detail for the report.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Message = dict[str, Any]
Kind = Literal["chat", "prompt_completion", "text"]

FORMATS = {
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "conversation": ("conversation",),  # reported as messages or sharegpt, by the keys of its turns
    "alpaca": ("instruction", "output"),
    "prompt_completion": ("prompt", "completion"),
    "question_answer": ("question", "answer"),
    "query_response": ("query", "response"),
    "text": ("text",),
}
COLUMNS = {name for columns in FORMATS.values() for name in columns} | {"input", "system", "history", "tools"}
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


class BadRow(Exception):
    """A row that cannot be trained: reason code and what is wrong, without the row's place."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class UnknownColumns(BadRow):
    """A row whose columns fit no known format."""

    def __init__(self, columns: list[str]) -> None:
        super().__init__("wrong_type", f"its columns fit no known format: {', '.join(columns) or 'none'}")
        self.columns = columns


@dataclass(slots=True)
class Conversation:
    """What one row says.

    kind `chat`: `messages` are turns for the chat template; the last one is the assistant's.
    kind `prompt_completion`: exactly a user's and an assistant's message, whose texts may follow each other directly.
    kind `text`: exactly one message, trained whole.
    A message has `role` and `content` (text, never null) and, where the row has them, `tool_calls` (each a function
    with name and arguments), `tool_call_id`, `name` and `reasoning_content`.
    """

    kind: Kind
    format: str
    messages: list[Message]
    tools: list[Any] | None = None
    repairs: list[str] = field(default_factory=list)
    digest: bytes = b""
    """Hash of the content: equal for equal conversations in any format."""


def normalize(value: Any, *, role_map: Mapping[str, str], columns: Mapping[str, str]) -> Conversation:
    """Reads one row's value; `role_map` and `columns` add names to the known ones."""
    if not isinstance(value, dict):
        raise BadRow("wrong_type", f"the row is {_kind_of(value)}, not an object")
    row = _renamed(value, columns)
    name = _recognise(row)
    if name == "text":
        text = _text(row["text"], "text", required=True)
        conversation = Conversation("text", name, [{"role": "assistant", "content": text}])
    elif len(FORMATS[name]) == 2:
        messages = _pair(row, name)
        plain = name == "prompt_completion" and len(messages) == 2
        conversation = Conversation("prompt_completion" if plain else "chat", name, messages, _tools(row))
    else:
        conversation = _chat(row, FORMATS[name][0], role_map, columns)
    conversation.digest = _digest(conversation)
    return conversation


def _renamed(row: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {**row, **{new: row[old] for old, new in names.items() if old in row}} if names else row


def _recognise(row: dict[str, Any]) -> str:
    # Columns with something in them come first: a table has every column in every row, most of them empty.
    for name, columns in FORMATS.items():
        if all(row.get(column) for column in columns):
            return name
    for name, columns in FORMATS.items():
        if all(column in row for column in columns):
            return name
    raise UnknownColumns(list(row))


def _pair(row: dict[str, Any], name: str) -> list[Message]:
    asked, answered = FORMATS[name]
    prompt = _text(row[asked], asked)
    if name == "alpaca" and (extra := _text(row.get("input"), "input")):
        prompt = f"{prompt}\n\n{extra}" if prompt else extra
    messages = [{"role": "system", "content": system}] if (system := _text(row.get("system"), "system")) else []
    for turn in _list(row.get("history"), "history"):
        if not isinstance(turn, list) or len(turn) != 2:
            raise BadRow("wrong_type", f"history holds {_kind_of(turn)}, not pairs of question and answer")
        messages.append({"role": "user", "content": _text(turn[0], "a question of history", required=True)})
        messages.append({"role": "assistant", "content": _text(turn[1], "an answer of history", required=True)})
    if not prompt:
        raise BadRow("empty_content", f"{asked} is empty")
    messages.append({"role": "user", "content": prompt})
    messages.append({"role": "assistant", "content": _text(row[answered], answered, required=True)})
    return messages


def _chat(row: dict[str, Any], column: str, role_map: Mapping[str, str], names: Mapping[str, str]) -> Conversation:
    turns = _list(row[column], column)
    messages = [_message(turn, at, role_map, names) for at, turn in enumerate(turns, 1)]
    system = _text(row.get("system"), "system")
    if system and messages and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    repairs = []
    merged = _merged(messages)
    if len(merged) < len(messages):
        repairs.append("merged_same_role")
    last = max((at for at, message in enumerate(merged, 1) if message["role"] == "assistant"), default=0)
    if not last:
        raise BadRow("no_assistant_turn", f"{len(messages)} messages, none of them the assistant's")
    if last < len(merged):
        repairs.append("trailing_user_turn")
    sharegpt = any("from" in _renamed(turn, names) for turn in turns)
    return Conversation("chat", "sharegpt" if sharegpt else "messages", merged[:last], _tools(row), repairs)


def _message(turn: Any, at: int, role_map: Mapping[str, str], names: Mapping[str, str]) -> Message:
    if not isinstance(turn, dict):
        raise BadRow("wrong_type", f"message {at} is {_kind_of(turn)}, not an object")
    turn = _renamed(turn, names)
    name = turn.get("role", turn.get("from"))
    role = _role(name, at, role_map)
    content = turn.get("content", turn.get("value"))
    calls = _list(turn.get("tool_calls"), f"tool_calls of message {at}") if role == "assistant" else []
    if name == "function_call" and isinstance(content, str) and not calls:
        calls, content = [_json(content, f"the function call of message {at}")], None
    what = f"content of message {at}"
    text = _text(content, what, required=role in ("user", "assistant") and not calls)
    message: Message = {"role": role, "content": text}
    if calls:
        message["tool_calls"] = [_call(call, at) for call in calls]
    for key in ("tool_call_id", "name", "reasoning_content"):
        if turn.get(key):
            message[key] = _text(turn[key], f"{key} of message {at}")
    return message


def _role(name: Any, at: int, role_map: Mapping[str, str]) -> str:
    if not isinstance(name, str):
        raise BadRow("wrong_type", f"the role of message {at} is {_kind_of(name)}, not text")
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


def _merged(messages: list[Message]) -> list[Message]:
    """Joins neighbours of the same role; results of parallel tool calls stay apart."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        called = last is not None and "tool_calls" in last
        joins = last is not None and last["role"] == message["role"] != "tool"
        if last is None or not joins or (called and "tool_calls" not in message):
            merged.append(message)
            continue
        parts = [text for text in (last["content"], message["content"]) if text]
        calls = [*last.get("tool_calls", []), *message.get("tool_calls", [])]
        merged[-1] = {**last, **message, "content": "\n\n".join(parts), **({"tool_calls": calls} if calls else {})}
    return merged


def _text(value: Any, what: str, *, required: bool = False) -> str:
    """Text, or the joined text parts of a list; null is empty."""
    if isinstance(value, list):
        value = "".join(_part(part, what) for part in value)
    if value is not None and not isinstance(value, str):
        raise BadRow("wrong_type", f"{what} is {_kind_of(value)}, not text")
    if required and (value is None or not value.strip()):
        raise BadRow("empty_content", f"{what} is {'null' if value is None else 'empty'}")
    return value or ""


def _part(part: Any, what: str) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str) and part.get("type", "text") == "text":
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else None
    found = f"a part of type {kind!r}" if kind else _kind_of(part)
    raise BadRow("wrong_type", f"{what} has {found}; only text is trained")


def _tools(row: dict[str, Any]) -> list[Any] | None:
    return _list(row.get("tools"), "tools") or None


def _list(value: Any, what: str) -> list[Any]:
    """A list, also one written as JSON text, as many tables hold it; null and empty text are empty."""
    if isinstance(value, str) and value.strip():
        value = _json(value, what)
    if not value and not isinstance(value, dict | bool | int | float):
        return []
    if not isinstance(value, list):
        raise BadRow("wrong_type", f"{what} is {_kind_of(value)}, not a list")
    return value


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRow("invalid_json", f"{what} is text that is not JSON ({str(error).split(';')[0]})") from error


def _digest(conversation: Conversation) -> bytes:
    content = [conversation.kind == "text", conversation.messages, conversation.tools]
    try:
        text = json.dumps(content, ensure_ascii=False, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).digest()
    except UnicodeEncodeError as error:
        raise BadRow("invalid_text", f"half a character: {error.object[error.start]!r}") from error
    except (TypeError, ValueError, RecursionError) as error:  # keys of mixed types, nesting too deep
        raise BadRow("wrong_type", f"tool calls or tools cannot be written as JSON ({error})") from error


def _kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", type(None): "null"}
    return names.get(type(value)) or f"{str(value)[:40]!r} ({type(value).__name__})"
