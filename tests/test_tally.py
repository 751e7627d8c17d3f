"""Which side a row is on."""

from random import Random

import numpy as np
import pytest

from sft_exp.tally import EVAL, TEST, TRAIN, Sides, mixed, split


def hashes(count: int, seed: int = 0) -> np.ndarray:
    dice = Random(seed)
    return np.array([dice.getrandbits(64) for _ in range(count)], np.uint64)


def shares(side: Sides) -> list[float]:
    return [float((side == at).mean()) for at in (TRAIN, EVAL, TEST)]


def test_sides_have_the_asked_share_and_stay_when_rows_are_added() -> None:
    few, more = hashes(2000), hashes(5000, seed=1)
    side = split(few, 0.1, 0.2)
    assert shares(side) == pytest.approx([0.7, 0.1, 0.2], abs=0.03)
    assert list(split(np.concatenate([more, few]), 0.1, 0.2)[len(more) :]) == list(side)
    assert list(split(few, 0.1, 0.0) == EVAL) == list(side == EVAL)  # a test set does not move the evaluation set


def test_equal_conversations_stay_together() -> None:
    twice = np.repeat(hashes(50), 2)
    side = split(twice, 0.3, 0.3)
    assert list(side[::2]) == list(side[1::2])


@pytest.mark.parametrize(
    ("rows", "eval_fraction", "test_fraction", "counts"),
    [
        (0, 0.5, 0.5, (0, 0, 0)),
        (1, 0.5, 0.4, (1, 0, 0)),  # the last one trains
        (2, 1e-9, 0.0, (1, 1, 0)),
        (3, 1e-9, 1e-9, (1, 1, 1)),
        (2, 1e-9, 1e-9, (1, 1, 0)),
        (5, 0.0, 0.0, (5, 0, 0)),
        (5, 1.0, 0.0, (1, 4, 0)),
    ],
)
def test_every_side_gets_one_row_as_far_as_there_are_enough(
    rows: int, eval_fraction: float, test_fraction: float, counts: tuple[int, int, int]
) -> None:
    side = split(hashes(rows), eval_fraction, test_fraction)
    assert tuple(int((side == at).sum()) for at in (TRAIN, EVAL, TEST)) == counts


def test_a_mixture_takes_rows_by_content() -> None:
    order, parts = hashes(300), np.array([0] * 100 + [1] * 200, np.uint16)
    used = mixed(order, parts, [1.0, 1.0])
    assert [int(used[parts == part].sum()) for part in (0, 1)] == [100, 100]
    shuffled = np.random.default_rng(0).permutation(300)
    assert list(mixed(order[shuffled], parts[shuffled], [1.0, 1.0])) == list(used[shuffled])
    assert mixed(order, parts, [None, None]).all()
