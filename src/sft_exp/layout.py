"""Conversation -> text, with the characters that are trained.

A chat is rendered once by the template. Where an assistant turn begins is found by prefix differencing: the rendering
of the messages before it, with the generation prompt, must be a prefix of the whole. The turn ends with the template's
end token, which is trained; white space after it is not. A template with generation blocks says itself what is trained;
what the generation prompt supplies is taken off their beginning.
"""

import re
from dataclasses import dataclass
from typing import Any

from sft_exp import reasoning
from sft_exp.conversation import Conversation, Message
from sft_exp.errors import ConfigError
from sft_exp.separators import Written
from sft_exp.template import ChatTemplate, Marks
from sft_exp.turns import Turns


@dataclass(slots=True)
class Layout:
    """Rendered text with the characters that are trained and those that must not become control tokens."""

    text: str
    end: int | None
    """Id of the token that closes a trained span."""
    trained: list[tuple[int, int]]
    plain: list[tuple[int, int]]
    think_blocks: int = 0
    """Reasoning blocks in the assistant's messages."""


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
    return Layout(whole, marks.eos_token, [(len(before), len(whole))], [], reasoning.count(conversation.messages))


def _chat(conversation: Conversation, template: ChatTemplate, marks: Marks) -> Layout:
    messages, tools = conversation.messages, conversation.tools
    if template.opening:
        messages = reasoning.opened(messages, template.opening)
    marked = template.marks_generation(tools)
    text, spans = (
        template.render_marked(messages, tools=tools) if marked else (template.render(messages, tools=tools), [])
    )
    found = _quick(messages, tools, template, text) or Turns(messages, tools, template, text, marked).place()
    trained = [written.trained for written in found if written.trained]
    layout = Layout(text, marks.end_token, trained, [], reasoning.count(messages))
    if marked:
        begins = [written.trained[0] for written in found if written.trained and written.prompted]
        layout.trained = [span for each in spans if (span := _narrowed(each, begins, text, template.end_text))]
    if marks.control:
        for message, written in zip(messages, found, strict=True):
            layout.plain.extend(_control_text(marks.control, message, text, written))
    return layout


def _quick(messages: list[Message], tools: list[Any] | None, template: ChatTemplate, text: str) -> list[Written] | None:
    separators = template.separators if tools is None else None
    return separators.place(messages, text, template.render) if separators else None


def _narrowed(span: tuple[int, int], begins: list[int], text: str, end_text: str) -> tuple[int, int] | None:
    """A generation block without what the model is prompted with, and without white space after the end mark."""
    start, stop = span
    start = max((begin for begin in begins if start <= begin <= stop), default=start)
    written = text[start:stop].rstrip()
    if any(written.endswith(mark) for mark in (end_text, *end_text.split()[:1])):
        stop = start + len(written)
    return (start, stop) if start < stop else None


def _control_text(control: re.Pattern[str], message: Message, text: str, written: Written) -> list[tuple[int, int]]:
    """Spans where a message contains the name of a control token."""
    if not control.search(message["content"]):
        return []
    content = message["content"].strip()
    begin = text.find(content, written.start, written.end)
    if begin < 0:
        return []
    return [match.span() for match in control.finditer(text, begin, begin + len(content))]
