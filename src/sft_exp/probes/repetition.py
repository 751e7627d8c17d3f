"""How much an answer repeats itself. All functions take token ids."""

from collections.abc import Sequence

LONGEST = 512
"""Tokens of an answer that `longest_repeat` looks at: its time grows with the square."""


def ngrams(ids: Sequence[int], n: int) -> list[tuple[int, ...]]:
    """All runs of n tokens, overlapping, in order."""
    return [tuple(ids[at : at + n]) for at in range(len(ids) - n + 1)]


def repeated(ids: Sequence[int], n: int = 4) -> float:
    """seq-rep-n of Welleck et al. 2019: 1 - distinct n-grams / n-grams; 0 where there is none."""
    found = ngrams(ids, n)
    return 1 - len(set(found)) / len(found) if found else 0.0


def distinct(answers: Sequence[Sequence[int]], n: int = 2) -> float:
    """distinct-n of Li et al. 2016: distinct n-grams of all answers / n-grams of all answers; 1 where there is none.

    It falls where answers are alike, each of which need not repeat itself.
    """
    found = [gram for ids in answers for gram in ngrams(ids, n)]
    return len(set(found)) / len(found) if found else 1.0


def longest_repeat(ids: Sequence[int]) -> int:
    """Tokens of the longest run that occurs twice in an answer; the two may overlap."""
    ids = list(ids[:LONGEST])
    best, above = 0, [0] * (len(ids) + 1)
    for first in range(len(ids)):
        row = [0] * (len(ids) + 1)
        for second in range(first + 1, len(ids)):
            if ids[first] == ids[second]:
                row[second + 1] = above[second] + 1
                best = max(best, row[second + 1])
        above = row
    return best
