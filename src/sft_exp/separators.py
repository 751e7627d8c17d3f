"""What a chat template writes between messages, learned once, so that most rows need two renderings only.

Nothing here is believed: a row is laid out this way only if its texts and the learned separators, put together, are
character by character what the template wrote for it, and what it prompts for the last answer with.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from sft_exp.conversation import BadRow, Message

Render = Callable[..., str]
_TURN = [{"role": "user", "content": "Qprobe"}, {"role": "assistant", "content": "Aprobe"}]
_SYSTEM = [{"role": "system", "content": "Sprobe"}]
_DIALOGS = (_TURN, _TURN * 2, _SYSTEM + _TURN, _SYSTEM + _TURN * 2)
_CONTENT = re.compile("[SQA]probe")


@dataclass(slots=True)
class Written:
    """Where a message stands in the rendered text, in characters."""

    start: int
    """It stands behind here."""
    end: int
    """Its text ends here."""
    trained: tuple[int, int] | None = None
    """Of an assistant's: from behind the generation prompt to behind the end mark."""
    prompted: bool = False
    """The trained characters begin where the generation prompt ends, proved by rendering it."""


@dataclass(frozen=True, slots=True)
class Separators:
    """Constant text around the contents of messages."""

    between: dict[tuple[str, str, bool], str]
    """By role before, role after (`""`: none) and whether the latter is the last message."""
    prompt: str
    """From a question's text to where an answer begins, when the model is prompted."""
    tail: str
    """After the last answer."""
    closing: tuple[str, str]
    """End mark of an earlier answer, and of the last."""

    def place(self, messages: Sequence[Message], text: str, render: Render) -> list[Written] | None:
        """Find the messages in their rendering; None unless it is exactly the learned one."""
        pieces: list[str] = []
        found: list[Written] = []
        at, before, last = 0, "", len(messages) - 1
        for number, message in enumerate(messages):
            role, content = message["role"], message["content"]
            separator = self.between.get((before, role, number == last))
            if separator is None or len(message) > 2:
                return None
            start = at + len(separator)
            end = start + len(content)
            trained = (at + len(self.prompt), end + len(self.closing[number == last])) if role == "assistant" else None
            found.append(Written(start, end, trained, prompted=True))
            pieces += separator, content
            at, before = end, role
        pieces.append(self.tail)
        if "".join(pieces) != text or not (answer := found[-1].trained):
            return None
        return found if render(messages[:-1], prompt=True) == text[: answer[0]] else None


def learn(render: Render) -> Separators | None:
    """Find the separators of a template by trying it; None if they are not always the same."""
    between: dict[tuple[str, str, bool], str] = {}
    tails: set[str] = set()
    for dialog in _DIALOGS:
        try:
            pieces = _CONTENT.split(render(dialog))
        except BadRow:  # some templates take no system message
            continue
        if len(pieces) != len(dialog) + 1:
            continue
        roles = ["", *(message["role"] for message in dialog)]
        for number, (piece, before, after) in enumerate(zip(pieces, roles, roles[1:], strict=False), 1):
            if between.setdefault((before, after, number == len(dialog)), piece) != piece:
                return None
        tails.add(pieces[-1])
    prompts = {_CONTENT.split(render(dialog[:-1], prompt=True))[-1] for dialog in (_TURN, _TURN * 2)}
    return _checked(between, prompts, tails)


def _checked(between: dict[tuple[str, str, bool], str], prompts: set[str], tails: set[str]) -> Separators | None:
    answers = [text for (_, role, _), text in between.items() if role == "assistant"]
    if len(prompts) != 1 or len(tails) != 1 or not answers:
        return None
    (prompt,), (tail,) = prompts, tails
    if not all(text.startswith(prompt) for text in answers):
        return None
    after = between.get(("assistant", "user", False), "")
    return Separators(between, prompt, tail, (closing(tail.rstrip(), after), tail.rstrip()))


def closing(end: str, text: str) -> str:
    """The end mark at the beginning of a text; some templates close the last turn with one mark more than others."""
    return next((mark for mark in (end, *end.split()[:1]) if text.startswith(mark)), "")


def added_system(render: Render, bos: str) -> str:
    """Text before the first question that no message holds: a system prompt that the template adds by itself."""
    try:
        before, _, between, _ = _CONTENT.split(render((_TURN * 2)[:3]))
    except (BadRow, ValueError):
        return ""
    before = before.removeprefix(bos)
    same = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(reversed(before), reversed(between), strict=False))
    )
    added = before[: len(before) - same]  # without the question's header
    try:
        first, _, _ = _CONTENT.split(render(_SYSTEM + _TURN[:1]))
    except (BadRow, ValueError):
        return added.strip()
    return added.removeprefix(first.removeprefix(bos)).strip()
