"""Think blocks: how many a row has, and how they begin where the generation prompt opens them."""

import re
from collections.abc import Sequence

from sft_exp.conversation import Message

_PROMPTED = re.compile(r"<think>\s*\Z")
_BEGIN = re.compile(r"\A\s*(<think>)?\s*")


def count(messages: Sequence[Message]) -> int:
    """Think blocks of the assistant."""
    return sum(
        message["content"].count("</think>") + bool(message.get("reasoning_content"))
        for message in messages
        if message["role"] == "assistant"
    )


def opening(whole: str, prompted: str) -> str:
    """What a generation prompt opens a think block with, if the template does not write that into answers itself."""
    found = _PROMPTED.search(prompted)
    return found.group() if found and not whole.startswith(prompted) else ""


def opened(messages: Sequence[Message], start: str) -> list[Message]:
    """Let each think block begin with `start`, as when the model is prompted for it; it may be missing in the data."""
    return [_opened(message, start) if message["role"] == "assistant" else message for message in messages]


def _opened(message: Message, start: str) -> Message:
    before, closed, _ = message["content"].partition("</think>")
    head, tag, _ = before.partition("<think>")
    if closed and not (tag and head.strip()):
        return {**message, "content": start + _BEGIN.sub("", message["content"])}
    if reasoning := message.get("reasoning_content"):
        rest = {key: value for key, value in message.items() if key != "reasoning_content"}
        return {**rest, "content": f"{start}{reasoning.strip()}\n</think>\n\n{message['content']}"}
    return message
