"""One row in any known format -> one `Conversation`, the only form that the rest of the program sees.

The format is recognised row by row, by the columns that hold something; further columns are ignored.
What cannot be trained raises `BadRow` with a reason code and a detail for the report.
"""

from collections.abc import Mapping
from typing import Any

from sft_exp.conversation import BadRow, Conversation, Message, UnknownColumns, digest
from sft_exp.fields import kind_of, list_of, renamed, text_of
from sft_exp.messages import merged, message, unfolded

FORMATS = {
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "conversation": ("conversation",),  # reported as messages or sharegpt, by the keys of its turns
    "alpaca": ("instruction", "output"),
    "prompt_completion": ("prompt", "completion"),
    "question_answer": ("question", "answer"),
    "query_response": ("query", "response"),
    "dialog": ("dialog",),  # reported like `conversation`
    "dialogue": ("dialogue",),
    "text": ("text",),
}
COLUMNS = {name for columns in FORMATS.values() for name in columns} | {"input", "system", "history", "tools"}


def normalize(value: Any, *, role_map: Mapping[str, str], columns: Mapping[str, str]) -> Conversation:
    """Read one row's value; `role_map` and `columns` add names to the known ones."""
    if not isinstance(value, dict):
        raise BadRow("wrong_type", f"the row is {kind_of(value)}, not an object")
    row = renamed(value, columns)
    name = _recognise(row)
    if name == "text":
        text = text_of(row["text"], "text", required=True)
        conversation = Conversation("text", name, [{"role": "assistant", "content": text}])
    elif len(FORMATS[name]) == 2:
        messages = _pair(row, name)
        plain = name == "prompt_completion" and len(messages) == 2
        conversation = Conversation("prompt_completion" if plain else "chat", name, messages, _tools(row))
    else:
        conversation = _chat(row, FORMATS[name][0], role_map, columns)
    conversation.digest = digest(conversation)
    return conversation


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
    prompt = text_of(row[asked], asked)
    if name == "alpaca" and (extra := text_of(row.get("input"), "input")):
        prompt = f"{prompt}\n\n{extra}" if prompt else extra
    system = text_of(row.get("system"), "system")
    messages = [{"role": "system", "content": system}] if system else []
    messages += _history(row)
    if not prompt:
        raise BadRow("empty_content", f"{asked} is empty")
    messages.append({"role": "user", "content": prompt})
    messages.append({"role": "assistant", "content": text_of(row[answered], answered, required=True)})
    return messages


def _history(row: dict[str, Any]) -> list[Message]:
    messages: list[Message] = []
    for turn in list_of(row.get("history"), "history"):
        if not isinstance(turn, list) or len(turn) != 2:
            raise BadRow("wrong_type", f"history holds {kind_of(turn)}, not pairs of question and answer")
        messages.append({"role": "user", "content": text_of(turn[0], "a question of history", required=True)})
        messages.append({"role": "assistant", "content": text_of(turn[1], "an answer of history", required=True)})
    return messages


def _chat(row: dict[str, Any], column: str, role_map: Mapping[str, str], names: Mapping[str, str]) -> Conversation:
    turns = [turn for each in list_of(row[column], column) for turn in unfolded(each, names)]
    messages = [message(turn, at, role_map, names) for at, turn in enumerate(turns, 1)]
    system = text_of(row.get("system"), "system")
    if system and messages and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    repairs = []
    joined = merged(messages)
    if len(joined) < len(messages):
        repairs.append("merged_same_role")
    last = max((at for at, each in enumerate(joined, 1) if each["role"] == "assistant"), default=0)
    if not last:
        raise BadRow("no_assistant_turn", f"{len(messages)} messages, none of them the assistant's")
    if last < len(joined):
        repairs.append("trailing_user_turn")
    sharegpt = any(renamed(turn, names).get("role") is None for turn in turns)
    return Conversation("chat", "sharegpt" if sharegpt else "messages", joined[:last], _tools(row), repairs)


def _tools(row: dict[str, Any]) -> list[Any] | None:
    return list_of(row.get("tools"), "tools") or None
