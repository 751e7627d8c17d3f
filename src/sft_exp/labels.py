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
    from tokenizers import Encoding
    from transformers import PreTrainedTokenizerBase

IGNORED = -100


@dataclass(slots=True)
class Encoded:
    """One row for the trainer, with what the report counts."""

    input_ids: list[int]
    """At most `max_length` of them."""
    labels: list[int]
    """As many; `IGNORED` where nothing is trained."""
    length: int
    """Tokens before the cut."""
    trained_tokens: int
    lost_tokens: int
    """Trained tokens beyond `max_length`."""
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
    def added_system(self) -> str:
        """System prompt that the chat template writes for conversations that have none."""
        return self._template.added_system if self._template else ""

    def encode(self, conversations: Sequence[Conversation]) -> list[Result]:
        """Encode each, or say why not."""
        layouts = [self._lay_out(conversation) for conversation in conversations]
        tokens = iter(self._tokenise([layout for layout in layouts if isinstance(layout, Layout)]))
        return [self._label(item, next(tokens)) if isinstance(item, Layout) else item for item in layouts]

    def _lay_out(self, conversation: Conversation) -> Layout | BadRow | ConfigError:
        try:
            return lay_out(conversation, self._template, self.marks)
        except (BadRow, ConfigError) as error:
            return error

    def _tokenise(self, layouts: Sequence[Layout]) -> list["Tokens"]:
        encodings = self._backend.encode_batch([layout.text for layout in layouts], add_special_tokens=False)
        return [
            self._tokenise_with_text(layout) if layout.plain else Tokens.of(encoding, layout)
            for layout, encoding in zip(layouts, encodings, strict=True)
        ]

    def _tokenise_with_text(self, layout: Layout) -> "Tokens":
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
        return Tokens(ids, [by_offsets(offsets, span) for span in layout.trained])

    def _label(self, layout: Layout, tokens: "Tokens") -> Encoded | BadRow:
        ids, limit = tokens.ids, self._max_length
        labels = list(ids) if self._loss is Loss.all else [IGNORED] * len(ids)
        for first, after in tokens.trained:
            labels[first:after] = ids[first:after]
        trained = _trained(labels)
        if not trained:
            return BadRow("no_trainable_token", "no token of it would be trained")
        ends = [1 < after <= limit and ids[after - 1] == layout.end for _, after in tokens.trained]
        return Encoded(
            input_ids=ids[:limit],
            labels=labels[:limit],
            length=len(ids),
            trained_tokens=_trained(labels[:limit]),
            lost_tokens=trained - _trained(labels[:limit]),
            answer_truncated=all(first >= limit for first, _ in tokens.trained),
            turns=len(tokens.trained),
            end_inside=tokens.trained[-1][1] <= limit,
            end_trained=any(ends),
            last_end_trained=ends[-1],
            ends_trained=sum(ends),
            think_blocks=sum(layout.text.count("</think>", *span) for span in layout.trained),
            row_think_blocks=layout.think_blocks,
            control_text=bool(layout.plain),
        )


def _trained(labels: list[int]) -> int:
    """Number of trained tokens; the first one is never predicted."""
    return len(labels) - labels.count(IGNORED) - (labels[:1] not in ([], [IGNORED]))


@dataclass(slots=True)
class Tokens:
    """Token ids of a text, and its trained characters as token ranges (first, after the last)."""

    ids: list[int]
    trained: list[tuple[int, int]]

    @classmethod
    def of(cls, encoding: "Encoding", layout: Layout) -> "Tokens":
        """Take what is needed of an encoding; its list of offsets is long and needed for odd borders only."""
        ids = encoding.ids
        spans = [_by_lookup(encoding, span, len(layout.text), len(ids)) for span in layout.trained]
        if None in spans:
            offsets = encoding.offsets
            return cls(ids, [by_offsets(offsets, span) for span in layout.trained])
        return cls(ids, [span for span in spans if span])


def _by_lookup(encoding: "Encoding", span: tuple[int, int], length: int, count: int) -> tuple[int, int] | None:
    """The same as `by_offsets`, or None where a border's character belongs to no token."""
    begin, stop = span
    first = encoding.char_to_token(begin)
    after = count if stop == length else encoding.char_to_token(stop)
    if first is None or after is None:
        return None
    if stop < length and (inside := encoding.token_to_chars(after)) and inside[0] < stop:
        after += 1  # a token across the end is trained too
    return first, after


def by_offsets(offsets: Sequence[tuple[int, int]], span: tuple[int, int]) -> tuple[int, int]:
    """Tokens of a span of characters; one across its begin holds the answer's first characters, so it is trained."""
    begin, stop = span
    return bisect_right(offsets, begin, key=lambda pair: pair[1]), bisect_left(offsets, stop, key=lambda pair: pair[0])
