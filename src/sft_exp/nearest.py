"""The known word that a mistyped one was meant to be."""

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str:
    """` Did you mean X?` for the nearest known word, else nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.55)
    return f" Did you mean {near[0]}?" if near else ""
