"""Conversation -> token ids and labels.

The text of the layout is tokenised whole, so that ids are those of inference, and its trained characters are mapped to
tokens by offsets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sft_exp.conversation import BadRow, Conversation
from sft_exp.errors import ConfigError
from sft_exp.layout import Layout, lay_out
from sft_exp.schema import Loss
from sft_exp.template import ChatTemplate, find_marks
from sft_exp.tokeniser import Ranges, Tokeniser

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100


@dataclass(slots=True)
class Encoded:
    """One row for the trainer, with what the report counts."""

    input_ids: list[int]
    """At most `max_length` of them."""
    trained: Ranges
    """Ranges of trained tokens, (first, after the last), in order and apart, before the cut."""
    length: int
    """Tokens before the cut."""
    trained_tokens: int
    """The first token of a row is never predicted, so it does not count."""
    answer_truncated: bool
    """Every trained span was cut off."""
    end_inside: bool
    """The last span ends inside `max_length`."""
    end_trained: bool
    """The end token of at least one turn is trained."""
    last_end_trained: bool
    """The end token of the last turn is trained."""
    turns: int
    """Assistant turns, or one text, before the cut."""
    ends_trained: int
    """Turns whose end token is trained."""
    think_blocks: int
    """Reasoning blocks in the trained text."""
    row_think_blocks: int
    """Reasoning blocks in the assistant's messages."""
    control_text: bool
    """A message contains the text of a control token; it was tokenised as text."""

    @property
    def truncated(self) -> bool:
        """Longer than `max_length`: the rest was cut off."""
        return self.length > len(self.input_ids)

    @property
    def labels(self) -> list[int]:
        """The token where it is trained, else `IGNORED`; as many as `input_ids`."""
        labels = [IGNORED] * len(self.input_ids)
        for first, after in self.trained:
            labels[first:after] = self.input_ids[first:after]
        return labels


Result = Encoded | BadRow | ConfigError
"""BadRow is the row's fault, ConfigError that of template or tokenizer."""


def chat_end_token(tokenizer: "PreTrainedTokenizerBase") -> int | None:
    """The last token that is not white space which the chat template puts after an assistant turn."""
    return Encoder(tokenizer, max_length=1, loss=Loss.assistant).marks.end_token if tokenizer.chat_template else None


def encode(conversation: Conversation, tokenizer: "PreTrainedTokenizerBase", *, max_length: int, loss: Loss) -> Encoded:
    """Encode one conversation; many are faster with one `Encoder`."""
    result = Encoder(tokenizer, max_length=max_length, loss=loss).encode([conversation])[0]
    if isinstance(result, Exception):
        raise result
    return result


class Encoder:
    """Encodes conversations with one tokenizer and its chat template."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", *, max_length: int, loss: Loss, train_end: bool = True
    ) -> None:
        if not tokenizer.is_fast:
            raise ConfigError(
                "the tokenizer has no tokenizer.json, which offsets need: set model.tokenizer to one with it."
            )
        self._max_length = max_length
        self._loss = loss
        self._train_end = train_end
        self._tokeniser = Tokeniser(tokenizer.backend_tokenizer)
        self._template = ChatTemplate(tokenizer) if tokenizer.chat_template else None
        self.marks = find_marks(tokenizer, self._tokeniser.backend, self._template)

    @property
    def added_system(self) -> str:
        """System prompt that the chat template writes for conversations that have none."""
        return self._template.added_system if self._template else ""

    @property
    def control_tokens(self) -> list[str]:
        """Control tokens that the chat template writes."""
        control = self.marks.control
        return list(dict.fromkeys(control.findall(self._template.written))) if control and self._template else []

    def encode(self, conversations: Sequence[Conversation]) -> list[Result]:
        """Encode each, or say why not."""
        layouts = [self._lay_out(conversation) for conversation in conversations]
        tokens = iter(self._tokeniser.tokens([layout for layout in layouts if isinstance(layout, Layout)]))
        return [self._label(item, *next(tokens)) if isinstance(item, Layout) else item for item in layouts]

    def _lay_out(self, conversation: Conversation) -> Layout | BadRow | ConfigError:
        try:
            return lay_out(conversation, self._template, self.marks)
        except (BadRow, ConfigError) as error:
            return error

    def _label(self, layout: Layout, ids: list[int], spans: Ranges) -> Encoded | BadRow:
        limit = self._max_length
        if not self._train_end:
            spans = [(first, after - (ids[after - 1] == layout.end)) for first, after in spans]
        trained = apart(spans) if self._loss is Loss.assistant else [(0, len(ids))]
        if not count(trained, len(ids)):
            return BadRow("no_trainable_token", "no token of it would be trained")
        ends = [1 < after <= limit and ids[after - 1] == layout.end for _, after in spans]
        return Encoded(
            input_ids=ids[:limit],
            trained=trained,
            length=len(ids),
            trained_tokens=count(trained, limit),
            answer_truncated=all(first >= limit for first, _ in spans),
            turns=len(spans),
            end_inside=spans[-1][1] <= limit,
            end_trained=any(ends),
            last_end_trained=ends[-1],
            ends_trained=sum(ends),
            think_blocks=sum(layout.text.count("</think>", *span) for span in layout.trained),
            row_think_blocks=layout.think_blocks,
            control_text=bool(layout.plain),
        )


def apart(ranges: Ranges) -> Ranges:
    """The ranges without overlap: two turns may share the token that stands across their border."""
    made, end = [], 0
    for first, after in ranges:
        made.append((max(first, end), max(after, end)))
        end = made[-1][1]
    return made


def count(ranges: Ranges, limit: int) -> int:
    """Trained tokens before `limit`; the first token of a row is never predicted."""
    return sum(max(0, min(after, limit) - max(first, 1)) for first, after in ranges)
