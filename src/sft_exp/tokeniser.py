"""Rendered text -> token ids, and its trained characters as ranges of tokens."""

import copy
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from sft_exp.layout import Layout

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

Ranges = list[tuple[int, int]]
"""Pairs (first, after the last)."""


class Tokeniser:
    """The tokenizers library's tokenizer without truncation, padding and post-processing; safe to use from threads."""

    def __init__(self, backend: "Tokenizer") -> None:
        self.backend = copy.deepcopy(backend)
        self.backend.no_truncation()
        self.backend.no_padding()
        self.backend.post_processor = None  # it may trim white space from offsets, which moves span borders

    @cached_property
    def _plain(self) -> "Tokenizer":
        """Takes names of control tokens for text. Another copy: the switch would be seen by every thread."""
        made = copy.deepcopy(self.backend)
        made.encode_special_tokens = True
        return made

    def tokens(self, layouts: Sequence[Layout]) -> list[tuple[list[int], Ranges]]:
        """Ids of each text, and the tokens of its trained characters."""
        encodings = self.backend.encode_batch([layout.text for layout in layouts], add_special_tokens=False)
        return [
            self._with_text(layout) if layout.plain else _read(encoding, layout)
            for layout, encoding in zip(layouts, encodings, strict=True)
        ]

    def _with_text(self, layout: Layout) -> tuple[list[int], Ranges]:
        """Tokenise names of control tokens in messages as text: the cuts around them cost merges, but only there."""
        ids: list[int] = []
        offsets: Ranges = []
        cuts = [0, *(at for span in layout.plain for at in span), len(layout.text)]
        for number, (begin, end) in enumerate(pairwise(cuts)):
            backend = self._plain if number % 2 == 1 else self.backend
            encoding = backend.encode(layout.text[begin:end], add_special_tokens=False)
            ids += encoding.ids
            offsets += [(begin + first, begin + last) for first, last in encoding.offsets]
        return ids, [by_offsets(offsets, span) for span in layout.trained]


def _read(encoding: "Encoding", layout: Layout) -> tuple[list[int], Ranges]:
    """Take what is needed of an encoding; its list of offsets is long and needed for odd borders only."""
    ids = encoding.ids
    ranges = [_by_lookup(encoding, span, len(layout.text), len(ids)) for span in layout.trained]
    if None in ranges:
        offsets = encoding.offsets
        return ids, [by_offsets(offsets, span) for span in layout.trained]
    return ids, [found for found in ranges if found]


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
