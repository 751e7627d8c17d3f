"""Think blocks of answers, and pairs of added tokens: whether they are there and well-formed."""

import re
from collections.abc import Sequence
from typing import Literal

OPEN, CLOSE = "<think>", "</think>"
State = Literal["none", "ok", "empty", "unclosed", "malformed"]


def state(answer: str, *, prompted: bool, ended: bool) -> State:
    """What an answer's think block is like.

    `prompted`: the generation prompt has opened it, as R1-Distill's does, so that the answer begins inside. 'unclosed'
    is an answer whose tokens were used up while it was thinking; a prompted one that ended without `</think>` has not
    thought, it has answered at once.
    """
    text = f"{OPEN}{answer}" if prompted and not answer.lstrip().startswith(OPEN) else answer
    opened, closed = text.count(OPEN), text.count(CLOSE)
    if opened + closed == 0 or (prompted and not closed and ended):
        return "none"
    if opened == 1 and not closed and not ended and text.lstrip().startswith(OPEN):
        return "unclosed"
    inside = re.match(rf"\s*{OPEN}(.*?){CLOSE}", text, re.DOTALL)
    if opened != 1 or closed != 1 or not inside:
        return "malformed"
    return "ok" if inside[1].strip() else "empty"


def pairs(tokens: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs `<x>` and `</x>` among added tokens."""
    return [(token, f"</{token[1:]}") for token in tokens if f"</{token[1:]}" in tokens and token[:2] != "</"]


def well_formed(answer: str, tokens: Sequence[str], *, ended: bool) -> bool:
    """Whether pairs of added tokens open and close in order, one in the other at most.

    The last ones may be open in an answer that was cut off. Tokens without a partner are well-formed anywhere.
    """
    partner = dict(pairs(tokens))
    closing, waiting = set(partner.values()), list[str]()
    for token in occurrences(answer, tokens):
        if token in partner:
            waiting.append(partner[token])
        elif token in closing and (not waiting or waiting.pop() != token):
            return False
    return not (waiting and ended)


def occurrences(answer: str, tokens: Sequence[str]) -> list[str]:
    """The added tokens of an answer, in order."""
    if not tokens:
        return []
    return re.findall("|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)), answer)
