"""The tokenizer's chat template: how messages are written, and which marks begin and end a turn."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sft_exp import reasoning, separators, training_template
from sft_exp.conversation import BadRow, Message
from sft_exp.errors import ConfigError
from sft_exp.rendering import Renderer

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

_PROBE = [{"role": "user", "content": "Qprobe"}, {"role": "assistant", "content": "Aprobe"}]
_MARK = re.compile(r"<[|｜][^<>|｜\s]{1,40}[|｜]>")


class ChatTemplate:
    """Writes messages as text; what it puts around an assistant turn is found by trying it out."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        try:
            self._renderer = Renderer(tokenizer)
            whole, asked = self.render(_PROBE), self.render(_PROBE[:1])
            prompted = self.render(_PROBE[:1], prompt=True)
            self.separators = separators.learn(self.render)
        except (BadRow, ValueError) as error:
            detail = error.detail if isinstance(error, BadRow) else error
            raise ConfigError(
                f"the chat template fails on a plain question and answer ({detail}): "
                "mend it or set model.chat_template=FILE.jinja."
            ) from error
        bos = tokenizer.bos_token
        if bos and whole.startswith(bos * 2):
            raise ConfigError(
                f"the chat template writes the begin token {bos} twice, which the model never saw: "
                "set model.chat_template=FILE.jinja to one that writes it once."
            )
        self.turn_start = prompted[len(asked) :] if prompted.startswith(asked) else ""
        self.end_text = whole.rpartition("Aprobe")[2].strip()
        """What follows an assistant turn, without white space around it."""
        self.written = whole + prompted
        """All it wrote when it was tried."""
        self.opening = reasoning.opening(whole, prompted)
        """What the generation prompt opens a think block with, if answers must bring it themselves."""
        self.added_system = separators.added_system(self.render, bos or "")
        """System prompt that it writes for conversations that have none."""
        self.render_marked = self._renderer.marked
        self.marks_generation = self._renderer.marks_generation

    def render(self, messages: Sequence[Message], *, prompt: bool = False, tools: list[Any] | None = None) -> str:
        """Apply the template; a row it cannot write is a BadRow."""
        return self._renderer.text(messages, prompt=prompt, tools=tools)

    def remedy(self, what: str) -> str:
        """Which template to set instead, one that does `what`."""
        known = training_template.find(self._tokenizer)
        if known is None or known == self._tokenizer.get_chat_template():
            return f"set model.chat_template=FILE.jinja to a template that {what}"
        return f"set model.chat_template=training, or model.chat_template=FILE.jinja to a template that {what}"


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
    in_pieces: tuple[str, ...] = ()
    """Marks that the template writes and that are no tokens, so that the model sees them in pieces."""
    added_system: str = ""
    """System prompt that the template adds to conversations without one."""


def find_marks(tokenizer: "PreTrainedTokenizerBase", backend: "Tokenizer", template: ChatTemplate | None) -> Marks:
    """Find the marks of a tokenizer, as its template writes them."""
    bos = tokenizer.bos_token if _adds_bos(tokenizer) else ""
    eos = tokenizer.eos_token or ""
    end_text = template.end_text if template else eos
    written = template.written if template else ""
    return Marks(
        bos=bos,
        eos=eos,
        eos_token=tokenizer.eos_token_id,
        end_text=end_text,
        end_token=_end_token(tokenizer, backend, end_text),
        control=_control_pattern(tokenizer, written, (bos, eos)),
        in_pieces=tuple(mark for mark in dict.fromkeys(_MARK.findall(written)) if _is_split(backend, mark)),
        added_system=template.added_system if template else "",
    )


def _adds_bos(tokenizer: "PreTrainedTokenizerBase") -> bool:
    ids = tokenizer("a").input_ids
    return bool(ids) and tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id


def _end_token(tokenizer: "PreTrainedTokenizerBase", backend: "Tokenizer", text: str) -> int | None:
    # Control tokens only: `>` of a mark in pieces would end any sentence.
    ids = backend.encode(text, add_special_tokens=False).ids
    known = {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids}
    return ids[-1] if ids and ids[-1] in known else None


def _is_split(backend: "Tokenizer", mark: str) -> bool:
    return len(backend.encode(mark, add_special_tokens=False).ids) > 1


def _control_pattern(
    tokenizer: "PreTrainedTokenizerBase", written: str, others: tuple[str, str]
) -> re.Pattern[str] | None:
    # Only those that the template writes; others, such as those of model.special_tokens, may be meant.
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    names = [name for name in special if name in written or name in others]
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True)))) if names else None
