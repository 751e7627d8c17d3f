"""Conversation -> text, with the characters that are trained.

A chat is rendered once by the template. Where an assistant turn begins is found by prefix differencing: the rendering
of the messages before it, with the generation prompt, must be a prefix of the whole. The turn ends with the template's
end token, which is trained; white space after it is not.
"""

import json
import re
from dataclasses import dataclass

from sft_exp.conversation import BadRow, Conversation, Message
from sft_exp.errors import ConfigError
from sft_exp.template import ChatTemplate, Marks

_THINK = re.compile(r"</?think>")


@dataclass(slots=True)
class Layout:
    """Rendered text with the characters that are trained and those that must not become control tokens."""

    text: str
    end: int | None
    """Id of the token that closes a trained span."""
    trained: list[tuple[int, int]]
    plain: list[tuple[int, int]]


def lay_out(conversation: Conversation, template: ChatTemplate | None, marks: Marks) -> Layout:
    """Write one conversation; without a template only a text, or a prompt and its completion, can be written."""
    if conversation.kind == "text" or (conversation.kind != "chat" and template is None):
        return _plain(conversation, marks)
    if template is None:
        raise ConfigError(
            "a conversation needs a chat template and the tokenizer has none: set model.chat_template=FILE.jinja."
        )
    return _chat(conversation, template, marks)


def _plain(conversation: Conversation, marks: Marks) -> Layout:
    """Text as it stands, closed by the end token; of a prompt and its completion the latter is trained."""
    if not marks.eos:
        raise ConfigError("the tokenizer has no end token (eos_token), so nothing can close plain text: give it one.")
    *prompt, text = [str(message["content"]) for message in conversation.messages]
    before = "".join(prompt)
    before = before if before.startswith(marks.bos) else marks.bos + before
    if not prompt and text.startswith(marks.bos):
        before = ""
    whole = before + (text if text.endswith(marks.eos) else text + marks.eos)
    return Layout(whole, marks.eos_token, [(len(before), len(whole))], [])


def _chat(conversation: Conversation, template: ChatTemplate, marks: Marks) -> Layout:
    text = template.render(conversation.messages, tools=conversation.tools)
    turns = _Turns(conversation, template, text)
    layout = Layout(text, marks.end_token, [], [])
    at = 0
    for number, message in enumerate(conversation.messages):
        assistant = message["role"] == "assistant"
        start = turns.begin(number) if assistant else at
        found = _find(message, number, text, start)
        at = max(at, found)
        if assistant:
            at = turns.stop(number, start, at)
            layout.trained.append((start, at))
        layout.plain.extend(_control_text(marks.control, message, text, start, found))
    return layout


@dataclass(frozen=True, slots=True)
class _Turns:
    """Finds the borders of assistant turns in a rendered conversation."""

    conversation: Conversation
    template: ChatTemplate
    text: str

    def begin(self, number: int) -> int:
        """Where a turn begins: behind what inference would prompt with."""
        if number == 0:  # templates cannot render an empty list
            start = self.template.turn_start
            found = self.text.find(start)
            return found + len(start) if found >= 0 else 0
        before = self.template.render(self.conversation.messages[:number], prompt=True, tools=self.conversation.tools)
        if not self.text.startswith(before):
            raise ConfigError(
                f"the chat template renders message {number + 1} otherwise than it prompts for it (it may drop the "
                "reasoning of earlier turns): set model.chat_template=FILE.jinja to a template that keeps every turn."
            )
        return len(before)

    def stop(self, number: int, start: int, at: int) -> int:
        """Where a turn ends: behind what the template writes after its text when it is the last turn."""
        messages = self.conversation.messages
        is_last = number + 1 == len(messages)
        closed = self.text if is_last else self.template.render(messages[: number + 1], tools=self.conversation.tools)
        end = closed[_find(messages[number], number, closed, start) :].rstrip()
        # Some templates close the last turn with one mark more than the others.
        mark = next((mark for mark in (end, *end.split()[:1]) if self.text.startswith(mark, at)), "")
        return at + len(mark)


def _find(message: Message, number: int, text: str, start: int) -> int:
    """End of the message in the text; a template may drop a role, strip reasoning or leave out tool calls."""
    at = start
    for piece in _pieces(message):
        found = text.find(piece, at)
        if found < 0 and message["role"] == "tool":  # some templates write a tool's output as JSON
            piece = json.dumps(piece, ensure_ascii=False)[1:-1]
            found = text.find(piece, at)
        if found < 0 and piece not in text:
            raise _lost(message, number)
        at = found + len(piece) if found >= 0 else at
    return at


def _pieces(message: Message) -> list[str]:
    """Texts of a message that must occur in the rendering; white space around them and their think tags may change."""
    texts = [message.get("reasoning_content", ""), *_THINK.split(message["content"])]
    texts += [call["function"]["name"] for call in message.get("tool_calls", [])]
    return [stripped for text in texts if (stripped := text.strip())]


def _lost(message: Message, number: int) -> BadRow | ConfigError:
    if message["role"] == "assistant" and ("</think>" in message["content"] or "reasoning_content" in message):
        return ConfigError(
            f"the chat template drops the reasoning of message {number + 1}, so it would be trained away: "
            "set model.chat_template=FILE.jinja to a template that keeps <think> blocks."
        )
    return BadRow("lost_by_template", f"the chat template drops text of message {number + 1} ({message['role']})")


def _control_text(
    control: re.Pattern[str] | None, message: Message, text: str, start: int, end: int
) -> list[tuple[int, int]]:
    """Spans where a message contains the name of a control token."""
    if not control or not control.search(message["content"]):
        return []
    content = message["content"].strip()
    begin = text.find(content, start, end)
    if begin < 0:
        return []
    return [match.span() for match in control.finditer(text, begin, begin + len(content))]
