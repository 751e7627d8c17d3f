"""What is remembered of each kept row until all are read: a few bytes, so that memory stays small for any data set."""

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sft_exp import lengths
from sft_exp.conversation import Conversation
from sft_exp.labels import Encoded
from sft_exp.mixture import shares
from sft_exp.prepared import Prepared
from sft_exp.rows import Place
from sft_exp.schema import Dataset

UNUSED, TRAIN, EVAL, TEST = -1, 0, 1, 2
"""Sides a row can be on."""
Sides = npt.NDArray[np.int8]


class Tally:
    """Counts kept rows and decides at the end which side each one is on."""

    def __init__(self, report: Prepared) -> None:
        self._report = report
        self._split = array("Q")
        self._order = array("Q")
        self._parts = array("H")
        self._lengths = array("I")
        self._kept_lengths = array("I")

    def add(self, place: Place, part: int, conversation: Conversation, encoded: Encoded) -> None:
        """Take one kept row of one part of the mixture."""
        self._report.keep(place, conversation, encoded)
        self._split.append(int.from_bytes(conversation.digest[:8]))
        self._order.append(int.from_bytes(conversation.digest[8:16]))
        self._parts.append(part)
        self._lengths.append(encoded.length)
        self._kept_lengths.append(len(encoded.input_ids))

    def finish(self, weights: Sequence[float | None], config: Dataset) -> Sides:
        """Complete the report; return the side of each kept row, shape (rows,)."""
        hashes, parts = np.asarray(self._split), np.asarray(self._parts)
        used = mixed(np.asarray(self._order), parts, weights)
        side = np.full(len(hashes), UNUSED, np.int8)
        # The unused are left out before: else the one conversation that stands in for a share could be among them.
        side[used] = split(hashes[used], config.eval_fraction, config.test_fraction, at_least_one=not config.streaming)
        report = self._report
        report.train_rows, report.eval_rows, report.test_rows = (int((side == at).sum()) for at in (TRAIN, EVAL, TEST))
        for at, part in enumerate(report.sources.values()):
            part["kept"], part["used"] = int((parts == at).sum()), int((used & (parts == at)).sum())
        whole = np.asarray(self._lengths)
        report.lengths, report.histogram = lengths.quantiles(whole), lengths.histogram(whole)
        return side

    def train_lengths(self, side: Sides) -> lengths.Lengths:
        """Lengths after the cut of the rows that train, shape (rows,)."""
        return np.asarray(self._kept_lengths, np.uint32).compress(side == TRAIN)


def split(
    hashes: npt.NDArray[np.uint64], eval_fraction: float, test_fraction: float, *, at_least_one: bool = True
) -> Sides:
    """Side of each row by the hash of its content, so that a row stays on its side when others are added.

    Equal conversations have equal hashes and stay together. With `at_least_one` each side that is asked for gets one
    conversation, as far as there are enough of them.
    """
    side = np.full(len(hashes), TRAIN, np.int8)
    if not at_least_one:
        side[hashes < _threshold(eval_fraction)] = EVAL
        side[hashes >= _threshold(1 - test_fraction)] = TEST
        return side
    distinct = np.unique(hashes)
    held = _at_least_one(distinct < _threshold(eval_fraction), eval_fraction, len(distinct) - 1)
    tested = _at_least_one(distinct >= _threshold(1 - test_fraction), test_fraction, len(distinct) - held - 1)
    if held:
        side[hashes <= distinct[held - 1]] = EVAL
    if tested:
        side[hashes >= distinct[-tested]] = TEST
    return side


def side_of(digest: bytes, eval_fraction: float, test_fraction: float) -> int:
    """Side of one conversation, without a look at the others."""
    number = np.array([int.from_bytes(digest[:8])], np.uint64)
    return int(split(number, eval_fraction, test_fraction, at_least_one=False)[0])


def _threshold(fraction: float) -> np.uint64:
    return np.uint64(min(int(fraction * 2**64), 2**64 - 1))


def _at_least_one(chosen: npt.NDArray[np.bool_], fraction: float, room: int) -> int:
    return min(max(int(chosen.sum()), 1), max(room, 0)) if fraction > 0 else 0


def mixed(
    order: npt.NDArray[np.uint64], parts: npt.NDArray[np.uint16], weights: Sequence[float | None]
) -> npt.NDArray[np.bool_]:
    """True for the rows that are used: of each part as many as its weight asks for, chosen by content."""
    available = np.bincount(parts, minlength=len(weights)) if len(parts) else np.zeros(len(weights), np.int64)
    used = np.zeros(len(parts), np.bool_)
    for part, wanted in enumerate(shares(available.tolist(), weights)):
        rows = np.flatnonzero(parts == part)
        used[rows[np.argsort(order[rows], kind="stable")[:wanted]]] = True
    return used
