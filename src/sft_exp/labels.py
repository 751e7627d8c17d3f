"""Conversation -> token ids and labels.

The text of the layout is tokenised whole, so that ids are those of inference, and its trained characters are mapped to
tokens by offsets.
"""

import copy
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from sft_exp.conversation import BadRow, Conversation
from sft_exp.errors import ConfigError
from sft_exp.layout import Layout, lay_out
from sft_exp.schema import Loss
from sft_exp.template import ChatTemplate, find_marks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100


@dataclass(slots=True)
class Encoded:
    """One row for the trainer, with what the report counts."""

    input_ids: list[int]
    labels: list[int]
    trained_tokens: int
    truncated: bool
    """Longer than `max_length`: the rest was cut off."""
    answer_truncated: bool
    """Every trained token was cut off."""
    end_trained: bool
    """The end token of at least one turn is trained."""
    end_inside: bool
    """The last token of the last turn lies inside `max_length`."""
    last_end_trained: bool
    """The end token of the last turn is trained."""
    turns: int
    """Assistant turns before the cut."""
    ends_trained: int
    """Turns whose end token is trained."""
    think_blocks: int
    """Reasoning blocks in the trained text."""
    row_think_blocks: int
    """Reasoning blocks in the assistant's messages."""
    control_text: bool
    """A message contains the text of a control token; it was tokenised as text."""


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

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", *, max_length: int, loss: Loss) -> None:
        if not tokenizer.is_fast:
            raise ConfigError(
                "the tokenizer has no tokenizer.json, which offsets need: set model.tokenizer to one with it."
            )
        self._chat_template = str(tokenizer.chat_template)
        self._max_length = max_length
        self._loss = loss
        self._backend = copy.deepcopy(tokenizer.backend_tokenizer)
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.post_processor = None  # it may trim white space from offsets, which moves span borders
        self._template = ChatTemplate(tokenizer) if tokenizer.chat_template else None
        self.marks = find_marks(tokenizer, self._backend, self._template)

    @property
    def identity(self) -> list[str]:
        """Everything about tokenizer and template that decides the ids."""
        return [self._backend.to_str(), self._chat_template, self.marks.bos, self.marks.eos]

    def encode(self, conversations: Sequence[Conversation]) -> list[Result]:
        """Encode each, or say why not."""
        layouts = [self._lay_out(conversation) for conversation in conversations]
        encodings = iter(self._tokenise([layout for layout in layouts if isinstance(layout, Layout)]))
        return [self._label(item, *next(encodings)) if isinstance(item, Layout) else item for item in layouts]

    def _lay_out(self, conversation: Conversation) -> Layout | BadRow | ConfigError:
        try:
            return lay_out(conversation, self._template, self.marks)
        except (BadRow, ConfigError) as error:
            return error

    def _tokenise(self, layouts: Sequence[Layout]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        encodings = self._backend.encode_batch([layout.text for layout in layouts], add_special_tokens=False)
        return [
            self._tokenise_with_text(layout) if layout.plain else (encoding.ids, encoding.offsets)
            for layout, encoding in zip(layouts, encodings, strict=True)
        ]

    def _tokenise_with_text(self, layout: Layout) -> tuple[list[int], list[tuple[int, int]]]:
        """Tokenise names of control tokens in messages as text: the cuts around them cost merges, but only there."""
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        cuts = [0, *(at for span in layout.plain for at in span), len(layout.text)]
        for number, (begin, end) in enumerate(pairwise(cuts)):
            self._backend.encode_special_tokens = number % 2 == 1
            encoding = self._backend.encode(layout.text[begin:end], add_special_tokens=False)
            ids += encoding.ids
            offsets += [(begin + first, begin + last) for first, last in encoding.offsets]
        self._backend.encode_special_tokens = False
        return ids, offsets

    def _label(self, layout: Layout, ids: list[int], offsets: list[tuple[int, int]]) -> Encoded | BadRow:
        labels = list(ids) if self._loss is Loss.all else [IGNORED] * len(ids)
        tokens = []
        for begin, stop in layout.trained:
            # A token across the begin holds the answer's first characters, so it is trained.
            first = bisect_right(offsets, begin, key=lambda span: span[1])
            after = bisect_left(offsets, stop, key=lambda span: span[0])
            labels[first:after] = ids[first:after]
            tokens.append((first, after - 1))
        if not any(label != IGNORED for label in labels[1:]):  # the first token is never predicted
            return BadRow("no_trainable_token", "no token of it would be trained")
        kept = labels[: self._max_length]
        ends = [0 < last < self._max_length and ids[last] == layout.end for _, last in tokens]
        return Encoded(
            input_ids=ids[: self._max_length],
            labels=kept,
            trained_tokens=sum(label != IGNORED for label in kept[1:]),
            truncated=len(ids) > self._max_length,
            answer_truncated=all(first >= self._max_length for first, _ in tokens),
            end_trained=any(ends),
            end_inside=tokens[-1][1] < self._max_length,
            last_end_trained=ends[-1],
            turns=len(tokens),
            ends_trained=sum(ends),
            think_blocks=sum(layout.text.count("</think>", *span) for span in layout.trained),
            row_think_blocks=layout.think_blocks,
            control_text=bool(layout.plain),
        )
