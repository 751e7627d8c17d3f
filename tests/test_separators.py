"""The short way to lay out a row: taken only where it is proved, and equal to the long way."""

import pytest

from chats import PUBLISHED, TEMPLATES, chat, make, published
from sft_exp.conversation import Conversation, Message
from sft_exp.template import ChatTemplate
from sft_exp.turns import Turns

CONVERSATIONS = [
    chat("Hi", "Hello."),
    chat("one", "1", "two", "2", "three", "3 👩‍👩‍👧", system="Be brief."),
    chat("a", "a", "a", "a"),
    chat("Qprobe", "Aprobe", "Sprobe", "<|im_end|>"),
]


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", ["chatml", "inst", *PUBLISHED, *(f"{name}_training" for name in PUBLISHED)])
def test_short_way_is_the_long_way(name: str, conversation: Conversation) -> None:
    template = ChatTemplate(published(name) if name.removesuffix("_training") in PUBLISHED else make(name))
    if template.opening:  # nothing to compare: plain answers are refused
        assert template.separators is None
        return
    messages = conversation.messages
    text = template.render(messages)
    assert template.separators is not None
    short = template.separators.place(messages, text, template.render)
    long = Turns(messages, None, template, text, marked=False).place()
    assert short is not None and [written.trained for written in short] == [written.trained for written in long]


def test_two_renderings_are_enough() -> None:
    template = ChatTemplate(published("qwen2_5"))
    rendered: list[int] = []

    def render(messages: list[Message], *, prompt: bool = False) -> str:
        rendered.append(len(messages))
        return template.render(messages, prompt=prompt)

    messages = chat("one", "1", "two", "2", "three", "3").messages
    assert template.separators is not None
    assert template.separators.place(messages, render(messages), render) is not None
    assert rendered == [6, 5]


def test_not_taken_where_the_row_differs_from_what_was_learned() -> None:
    tokenizer = make("chatml")
    plain = str(tokenizer.chat_template)
    tokenizer.chat_template = (
        plain + "{% if add_generation_prompt and '/quick' in messages[-1].content %}<q>{% endif %}"
    )
    template = ChatTemplate(tokenizer)
    assert template.separators is not None
    for question, found in (("a", True), ("a /quick", False)):  # the prompt is another
        messages = chat(question, "b").messages
        assert bool(template.separators.place(messages, template.render(messages), template.render)) is found
    tokenizer.chat_template = plain.replace("{{ message.content }}", "{{ message.content | trim }}")
    template = ChatTemplate(tokenizer)
    assert template.separators is not None
    messages = chat("a", " b").messages  # the rendering is another
    assert template.separators.place(messages, template.render(messages), template.render) is None


def test_nothing_is_learned_from_a_template_that_changes() -> None:
    tokenizer = make("chatml")
    tokenizer.chat_template = "{{ messages | length }}" + (TEMPLATES / "chatml.jinja").read_text()
    assert ChatTemplate(tokenizer).separators is None
