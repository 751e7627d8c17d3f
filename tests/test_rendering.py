"""Rendering: the text of apply_chat_template, character by character."""

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from chats import PUBLISHED, TOOL, chat, make, published, tool_chat
from sft_exp.conversation import BadRow, Conversation, Message
from sft_exp.rendering import Renderer
from sft_exp.tokenizer import SHIPPED

TOKENIZERS = ["chatml", "inst", "shipped", *PUBLISHED, *(f"{name}_training" for name in PUBLISHED)]
REASONED = chat("7*8?", "56", "1+1?", "2")
REASONED.messages[1]["reasoning_content"] = "seven eights\n"
CONVERSATIONS = {
    "short": chat("Hi", "Hello."),
    "long": chat("你好", "蓝色 🌊", " x ", "\n\n y \n", "<b>&'\"", "{{ z }}", system="用中文。"),
    "think": chat("a", "<think>\nhm\n</think>\n\nb", "c", "hm</think>d"),
    "tools": tool_chat(),
    "reasoning": REASONED,
}


def tokenizer_named(name: str) -> PreTrainedTokenizerFast:
    if name == "shipped":
        return PreTrainedTokenizerFast.from_pretrained(SHIPPED)
    return make(name) if name in ("chatml", "inst") else published(name)


def theirs(tokenizer: Any, messages: list[Message], tools: list[Any] | None, prompt: bool) -> str | None:
    try:
        return str(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=prompt))
    except Exception:
        return None


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_same_as_apply_chat_template(name: str, conversation: Conversation) -> None:
    tokenizer = tokenizer_named(name)
    renderer = Renderer(tokenizer)
    for end in range(1, len(conversation.messages) + 1):
        for prompt in (False, True):
            messages = conversation.messages[:end]
            wanted = theirs(tokenizer, messages, conversation.tools, prompt)
            if wanted is None:
                with pytest.raises(BadRow):
                    renderer.text(messages, prompt=prompt, tools=conversation.tools)
            else:
                assert renderer.text(messages, prompt=prompt, tools=conversation.tools) == wanted
        if wanted is not None and renderer.marks_generation(conversation.tools):
            text, spans = renderer.marked(messages, tools=conversation.tools)
            assert text == theirs(tokenizer, messages, conversation.tools, False)
            assert len(spans) == sum(message["role"] == "assistant" for message in messages)


def test_template_for_tools_beside_the_default() -> None:
    tokenizer = make("chatml")
    tokenizer.chat_template = {"default": "plain", "tool_use": "{% generation %}tools{% endgeneration %}"}
    renderer = Renderer(tokenizer)
    messages = chat("a", "b").messages
    assert renderer.text(messages) == "plain" and not renderer.marks_generation(None)
    assert renderer.marked(messages, tools=[TOOL]) == ("tools", [(0, 5)]) and renderer.marks_generation([TOOL])
