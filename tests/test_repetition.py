"""Repetition measures against examples counted by hand."""

import pytest

from sft_exp.probes.repetition import distinct, longest_repeat, ngrams, repeated


def test_ngrams_overlap() -> None:
    assert ngrams([1, 2, 3], 2) == [(1, 2), (2, 3)]
    assert ngrams([1, 2], 4) == []


@pytest.mark.parametrize(
    ("ids", "share"),
    [
        ([], 0.0),
        ([1, 2, 3], 0.0),  # no 4-gram
        ([1, 2, 3, 4, 5], 0.0),  # 1234 2345
        ([1, 2, 1, 2, 1, 2], 1 / 3),  # 1212 2121 1212
        ([7] * 13, 0.9),  # one of ten
        ([1, 2, 3, 4, 1, 2, 3, 4], 0.2),  # 1234 2341 3412 4123 1234
    ],
)
def test_repeated_4grams(ids: list[int], share: float) -> None:
    assert repeated(ids) == pytest.approx(share, abs=1e-12)


def test_distinct_is_over_all_answers() -> None:
    assert distinct([[1, 2, 3], [1, 2, 4]]) == 0.75  # 12 23 12 24
    assert distinct([[1, 2, 3]] * 4) == 0.25  # none repeats itself, all say the same
    assert distinct([[], [5]]) == 1.0


@pytest.mark.parametrize(
    ("ids", "tokens"),
    [([], 0), ([1, 2, 3], 0), ([1, 2, 9, 1, 2], 2), ([5, 5, 5, 5], 3), ([1, 2, 3, 1, 2, 3, 1, 2], 5)],
)
def test_longest_repeat(ids: list[int], tokens: int) -> None:
    assert longest_repeat(ids) == tokens
