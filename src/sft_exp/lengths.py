"""Numbers about the lengths of rows: quantiles, a histogram, and what padding or packing makes of them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Lengths = npt.NDArray[np.uint32]
"""Shape (rows,), in tokens."""
SAMPLE = 20_000
"""Rows that padding and packing are computed on at most."""


def quantiles(lengths: Lengths) -> dict[str, int]:
    """The median, the 95th and 99th percentile and the maximum; each is the length of a real row."""
    if not len(lengths):
        return {}
    levels = np.quantile(lengths, [0.5, 0.95, 0.99, 1.0], method="inverted_cdf")
    return {name: int(level) for name, level in zip(("p50", "p95", "p99", "max"), levels, strict=True)}


def histogram(lengths: Lengths, bins: int = 40) -> list[list[int]]:
    """Pairs of a length and the number of rows up to it; the last bin holds everything above the 99.5th percentile."""
    if not len(lengths):
        return []
    top = int(np.quantile(lengths, 0.995, method="inverted_cdf"))
    width = max(1, -(-top // bins))
    counts = np.bincount(np.minimum((lengths - 1) // width, bins))
    return [[(at + 1) * width, int(count)] for at, count in enumerate(counts)]


def padded_share(lengths: Lengths, batch: int, seed: int = 0) -> float:
    """Share of a batch that is padding, where rows are drawn at random and filled up to the longest of the batch."""
    drawn = np.random.default_rng(seed).permutation(lengths)[:SAMPLE].astype(np.int64)
    if not len(drawn):
        return 0.0
    starts = np.arange(0, len(drawn), batch)
    slots = (np.maximum.reduceat(drawn, starts) * np.diff([*starts, len(drawn)])).sum()
    return float(1 - drawn.sum() / slots)


def packed_share(lengths: Lengths, max_length: int, seed: int = 0) -> float:
    """Share of packed rows of `max_length` tokens that stays empty, by best-fit decreasing as TRL packs."""
    drawn = np.random.default_rng(seed).permutation(lengths)[:SAMPLE]
    if not len(drawn):
        return 0.0
    packs = _best_fit(sorted((int(length) for length in drawn), reverse=True), max_length)
    return float(1 - drawn.sum(dtype=np.int64) / (packs * max_length))


def _best_fit(lengths: Sequence[int], capacity: int) -> int:
    """Number of packs when each row goes into the fullest pack that still has room."""
    free = np.zeros(capacity + 1, np.int64)  # packs by the room they have left
    packs = 0
    for length in lengths:
        room = np.flatnonzero(free[length:])
        if len(room):
            left = length + int(room[0])
            free[left] -= 1
        else:
            left, packs = capacity, packs + 1
        free[left - length] += 1
    return packs
