"""The tokenizer's chat template: how messages are written, and which marks begin and end a turn."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sft_exp.conversation import BadRow, Message
from sft_exp.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

_PROBE = [{"role": "user", "content": "Qprobe"}, {"role": "assistant", "content": "Aprobe"}]


class ChatTemplate:
    """Writes messages as text; what it puts around an assistant turn is found by trying it out."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        try:
            whole, asked = self.render(_PROBE), self.render(_PROBE[:1])
            prompted = self.render(_PROBE[:1], prompt=True)
        except BadRow as error:
            raise ConfigError(
                f"the chat template fails on a plain question and answer ({error.detail}): "
                "mend it or set model.chat_template=FILE.jinja."
            ) from error
        self.turn_start = prompted[len(asked) :] if prompted.startswith(asked) else ""
        self.end_text = whole.rpartition("Aprobe")[2].strip()
        """What follows an assistant turn, without white space around it."""
        self.written = whole + prompted
        """All it wrote when it was tried."""

    def render(self, messages: Sequence[Message], *, prompt: bool = False, tools: list[Any] | None = None) -> str:
        """Apply the template; anything may go wrong in it, and then the row is bad."""
        try:
            try:
                return self._apply(messages, prompt, tools)
            except TypeError:  # most templates write arguments as JSON, some join them as text
                return self._apply([_with_text_arguments(message) for message in messages], prompt, tools)
        except Exception as error:
            raise BadRow("refused_by_template", str(error) or type(error).__name__) from error

    def _apply(self, messages: Sequence[Message], prompt: bool, tools: list[Any] | None) -> str:
        made = self._tokenizer.apply_chat_template(
            list(messages), tools=tools, tokenize=False, add_generation_prompt=prompt
        )
        return str(made)


def _with_text_arguments(message: Message) -> Message:
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(arguments, ensure_ascii=False)}}
        for call in message.get("tool_calls", [])
        if not isinstance(arguments := call["function"]["arguments"], str)
    ]
    return {**message, "tool_calls": calls} if calls else message


@dataclass(frozen=True, slots=True)
class Marks:
    """Control tokens around the text of messages."""

    bos: str
    """Empty where the tokenizer puts nothing before a text."""
    eos: str
    eos_token: int | None
    end_text: str
    """What ends an assistant turn; without a chat template what ends a text."""
    end_token: int | None
    """The last token of `end_text`, None if that is no control token."""
    control: re.Pattern[str] | None
    """Names of control tokens that must stay text where a message contains them."""


def find_marks(tokenizer: "PreTrainedTokenizerBase", backend: "Tokenizer", template: ChatTemplate | None) -> Marks:
    """Find the marks of a tokenizer, as its template writes them."""
    bos = tokenizer.bos_token if _adds_bos(tokenizer) else ""
    eos = tokenizer.eos_token or ""
    end_text = template.end_text if template else eos
    return Marks(
        bos=bos,
        eos=eos,
        eos_token=tokenizer.eos_token_id,
        end_text=end_text,
        end_token=_end_token(tokenizer, backend, end_text),
        control=_control_pattern(tokenizer, template.written if template else "", (bos, eos)),
    )


def _adds_bos(tokenizer: "PreTrainedTokenizerBase") -> bool:
    ids = tokenizer("a").input_ids
    return bool(ids) and tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id


def _end_token(tokenizer: "PreTrainedTokenizerBase", backend: "Tokenizer", text: str) -> int | None:
    # Control tokens only: `>` of a mark in pieces would end any sentence.
    ids = backend.encode(text, add_special_tokens=False).ids
    known = {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids}
    return ids[-1] if ids and ids[-1] in known else None


def _control_pattern(
    tokenizer: "PreTrainedTokenizerBase", written: str, others: tuple[str, str]
) -> re.Pattern[str] | None:
    # Only those that the template writes; others, such as those of model.special_tokens, may be meant.
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    names = [name for name in special if name in written or name in others]
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True)))) if names else None
