"""A row as the model sees it: its text in pieces that are trained, masked or control tokens."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from sft_exp.labels import IGNORED

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Kind = Literal["trained", "masked", "special", "trained special"]
"""`special` is a control token such as <|im_end|>; whether the end of a turn is trained must be seen too."""

STYLES: dict[str, str] = {"trained": "32", "masked": "90", "special": "35", "trained special": "1;32"}
"""Green, grey, magenta and bold green."""
CONTEXT = 8
"""Tokens decoded before and after a piece: decoders drop the space before the first token of a text, and a character
spans four tokens at most."""
VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
VISIBLE |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def pieces(
    input_ids: Sequence[int], labels: Sequence[int], tokenizer: "PreTrainedTokenizerBase"
) -> list[tuple[str, Kind]]:
    """Text and kind of each run of tokens of one kind, in order; together they are the text of the row.

    A character whose tokens are of two kinds belongs to the first of them.
    """
    control = _control_tokens(tokenizer)
    kinds = [_kind(label != IGNORED, token in control) for token, label in zip(input_ids, labels, strict=True)]
    found: list[tuple[str, Kind]] = []
    begin = 0
    while begin < len(kinds):
        end = next((at for at in range(begin, len(kinds)) if kinds[at] != kinds[begin]), len(kinds))
        text, end = _decode(list(input_ids), begin, end, tokenizer)
        if found and found[-1][1] == kinds[begin]:  # a moved border can leave neighbours of one kind
            text = found.pop()[0] + text
        found.append((text, kinds[begin]))
        begin = end
    return found


def on_terminal() -> bool:
    """Whether output may be coloured."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def ansi(pieces: Sequence[tuple[str, str]], colour: bool) -> str:
    """Pieces as one text: coloured for a terminal, or with trained text between ⟦ and ⟧.

    Control characters are made visible: text of a data file must not be able to command a terminal.
    """
    shown = [(visible(text), kind) for text, kind in pieces]
    if colour:
        return "".join(f"\x1b[{STYLES[kind]}m{text}\x1b[0m" for text, kind in shown)
    marked = "".join(f"⟦{text}⟧" if kind.startswith("trained") else text for text, kind in shown)
    return marked.replace("⟧⟦", "")


def visible(text: str) -> str:
    """The text with signs in place of control characters, line breaks and tabs excepted."""
    return text.translate(VISIBLE)


def _kind(trained: bool, control: bool) -> Kind:
    if control:
        return "trained special" if trained else "special"
    return "trained" if trained else "masked"


def _control_tokens(tokenizer: "PreTrainedTokenizerBase") -> set[int]:
    """Ids of tokens that stand for no text; some tokenizers also have added tokens for runs of spaces."""
    added = {
        number for number, token in tokenizer.added_tokens_decoder.items() if token.special or token.content.strip()
    }
    return added | set(tokenizer.all_special_ids)


def _decode(ids: list[int], begin: int, end: int, tokenizer: "PreTrainedTokenizerBase") -> tuple[str, int]:
    """Text of ids[begin:end], with `end` moved to where no character is cut, and that end."""

    def decode(first: int, last: int) -> str:
        return str(tokenizer.decode(ids[first:last], skip_special_tokens=False, clean_up_tokenization_spaces=False))

    before = max(begin - CONTEXT, 0)
    text = decode(before, end)
    while end < len(ids) and not decode(before, end + CONTEXT).startswith(text):
        end += 1
        text = decode(before, end)
    return text[len(decode(before, begin)) :], end
