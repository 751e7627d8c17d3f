"""Finds the messages of any rendered conversation by rendering what stands before each answer."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sft_exp.conversation import BadRow, Message
from sft_exp.errors import ConfigError
from sft_exp.separators import Written, closing
from sft_exp.template import ChatTemplate

_THINK = re.compile(r"</?think>")


@dataclass(frozen=True, slots=True)
class Turns:
    """One rendered conversation; raises where the template loses something of it."""

    messages: Sequence[Message]
    tools: list[Any] | None
    template: ChatTemplate
    text: str
    marked: bool
    """The template itself says what is trained, so a prompt that differs from the rendering is no fault."""

    def place(self) -> list[Written]:
        """Find all messages; each stands before the answer that follows it, since equal text may stand behind."""
        begins = [self._begin(number) if self._answers(number) else None for number in range(len(self.messages))]
        found: list[Written] = []
        at = 0
        for number, begin in enumerate(begins):
            before = next((later for later in begins[number + 1 :] if later is not None), len(self.text))
            start = at if begin is None else begin
            end = self._find(number, self.text, start, before)
            at = max(at, end)
            if self._answers(number):
                at = self._stop(number, start, at)
                found.append(Written(start, end, (start, at), prompted=begin is not None))
            else:
                found.append(Written(start, end))
        return found

    def _answers(self, number: int) -> bool:
        return bool(self.messages[number]["role"] == "assistant")

    def _begin(self, number: int) -> int | None:
        """Where a turn begins: behind what inference would prompt with."""
        if number == 0:  # templates cannot render an empty list
            start = self.template.turn_start
            found = self.text.find(start)
            return found + len(start) if found >= 0 else 0
        before = self.template.render(self.messages[:number], prompt=True, tools=self.tools)
        if self.text.startswith(before):
            return len(before)
        opening = self.template.opening
        if opening and before.endswith(opening) and not self.messages[number]["content"].startswith(opening):
            raise BadRow(
                "no_reasoning",
                f"message {number + 1} does not begin with a <think> block, which the model is prompted with: add its "
                "reasoning, or set model.chat_template=FILE.jinja to a template that does not prompt for it",
            )
        if self.marked:
            return None
        raise ConfigError(
            f"the chat template renders message {number + 1} otherwise than it prompts for it (it may drop the "
            f"reasoning of earlier turns): {self.template.remedy('keeps every turn')}."
        )

    def _stop(self, number: int, start: int, at: int) -> int:
        """Where a turn ends: behind what the template writes after its text when it is the last turn."""
        end = self.template.end_text
        if not (end and self.text.startswith(end, at)):  # as after a tool call, or closed by a mark of its own
            is_last = number + 1 == len(self.messages)
            closed = self.text if is_last else self.template.render(self.messages[: number + 1], tools=self.tools)
            end = closed[self._find(number, closed, start, len(closed)) :].rstrip()
        return at + len(closing(end, self.text[at : at + len(end)]))

    def _find(self, number: int, text: str, start: int, before: int) -> int:
        """End of the message in the text; a template may drop a role, strip reasoning or leave out tool calls."""
        message, at = self.messages[number], start
        for piece in _pieces(message):
            found = text.find(piece, at, before)
            if found < 0 and message["role"] == "tool":  # some templates write a tool's output as JSON
                piece = json.dumps(piece, ensure_ascii=False)[1:-1]
                found = text.find(piece, at, before)
            # Some templates move system messages to the front, or write the parts of an answer in another order.
            if found < 0 and text.find(piece, start if self._answers(number) else 0, before) < 0:
                raise self._lost(number)
            at = found + len(piece) if found >= 0 else at
        return at

    def _lost(self, number: int) -> BadRow | ConfigError:
        message = self.messages[number]
        if message["role"] == "assistant" and ("</think>" in message["content"] or "reasoning_content" in message):
            return ConfigError(
                f"the chat template drops the reasoning of message {number + 1}, so it would be trained away: "
                f"{self.template.remedy('keeps <think> blocks')}."
            )
        return BadRow("lost_by_template", f"the chat template drops text of message {number + 1} ({message['role']})")


def _pieces(message: Message) -> list[str]:
    """Texts of a message that must occur in the rendering; white space around them and their think tags may change."""
    texts = [message.get("reasoning_content", ""), *_THINK.split(message["content"])]
    texts += [call["function"]["name"] for call in message.get("tool_calls", [])]
    return [stripped for text in texts if (stripped := text.strip())]
