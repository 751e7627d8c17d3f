"""Renders messages by a tokenizer's chat template: the same text as `apply_chat_template`, at half its price."""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sft_exp.conversation import BadRow, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Spans = list[tuple[int, int]]
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class Renderer:
    """The chat template of a tokenizer; anything may go wrong in one, and then the row is bad."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        from transformers.utils import chat_template_utils

        self._library = chat_template_utils
        self._special = dict(tokenizer.special_tokens_map)
        # A tokenizer may have several templates by name, one of them for rows with tools.
        self._plain = str(tokenizer.get_chat_template())
        self._with_tools = str(tokenizer.get_chat_template(tools=[{}]))
        self._marks = {text: bool(_GENERATION.search(text)) for text in (self._plain, self._with_tools)}

    def marks_generation(self, tools: list[Any] | None) -> bool:
        """Whether `{% generation %}` blocks of the template say what the assistant writes."""
        return self._marks[self._template(tools)]

    def text(self, messages: Sequence[Message], *, prompt: bool = False, tools: list[Any] | None = None) -> str:
        """Write messages, and with `prompt` what invites the assistant to go on."""
        if tools is None and all(len(message) == 2 for message in messages):  # role and content: text, nothing else
            try:
                compiled = self._library._compile_jinja_template(self._plain)
                return str(
                    compiled.render(
                        messages=messages, tools=None, documents=None, add_generation_prompt=prompt, **self._special
                    )
                )
            except Exception as error:
                raise _refused(error) from error
        return self._render(messages, tools, prompt=prompt)[0]

    def marked(self, messages: Sequence[Message], *, tools: list[Any] | None = None) -> tuple[str, Spans]:
        """Write messages; also return the characters inside the template's generation blocks."""
        return self._render(messages, tools, marked=True)

    def _template(self, tools: list[Any] | None) -> str:
        return self._plain if tools is None else self._with_tools

    def _render(
        self, messages: Sequence[Message], tools: list[Any] | None, *, prompt: bool = False, marked: bool = False
    ) -> tuple[str, Spans]:
        try:
            try:
                return self._call(messages, tools, prompt, marked)
            except TypeError:  # most templates write arguments as JSON, some join them as text
                return self._call([_with_text_arguments(message) for message in messages], tools, prompt, marked)
        except Exception as error:
            raise _refused(error) from error

    def _call(
        self, messages: Sequence[Message], tools: list[Any] | None, prompt: bool, marked: bool
    ) -> tuple[str, Spans]:
        texts, spans = self._library.render_jinja_template(
            conversations=[list(messages)],
            tools=tools,
            chat_template=self._template(tools),
            add_generation_prompt=prompt,
            return_assistant_tokens_mask=marked,
            **self._special,
        )
        return texts[0], spans[0] if marked else []


def _refused(error: Exception) -> BadRow:
    return BadRow("refused_by_template", str(error) or type(error).__name__)


def _with_text_arguments(message: Message) -> Message:
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(arguments, ensure_ascii=False)}}
        for call in message.get("tool_calls", [])
        if not isinstance(arguments := call["function"]["arguments"], str)
    ]
    return {**message, "tool_calls": calls} if calls else message
