"""What one row says, or why it says nothing that can be trained."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

Message = dict[str, Any]
Kind = Literal["chat", "prompt_completion", "text"]


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


def digest(conversation: Conversation) -> bytes:
    """Hash what is said; whether it was written as a chat or as prompt and completion makes no difference."""
    try:
        return hashlib.sha256(_said(conversation).encode()).digest()
    except UnicodeEncodeError as error:
        raise BadRow("invalid_text", f"half a character: {error.object[error.start]!r}") from error
    except (TypeError, ValueError, RecursionError) as error:  # keys of mixed types, nesting too deep
        raise BadRow("wrong_type", f"tool calls or tools cannot be written as JSON ({error})") from error


def _said(conversation: Conversation) -> str:
    """Text that is the same for equal conversations only."""
    messages, is_text = conversation.messages, conversation.kind == "text"
    if conversation.tools is None and all(len(message) == 2 for message in messages):  # a fifth of the time of JSON
        shape = [f"{message['role']} {len(message['content'])}" for message in messages]
        return "\0".join([str(is_text), *shape, *(message["content"] for message in messages)])
    content = [is_text, messages, conversation.tools]
    return json.dumps(content, ensure_ascii=False, sort_keys=True, default=str)
