"""Batch arithmetic."""

import random
import re

import pytest

from sft_exp import batch


def test_numbers_multiply_back() -> None:
    """Whatever passes `problem` is cut up exactly; whatever does not is offered values that are."""
    draw = random.Random(7)
    passed = 0
    for _ in range(5000):
        whole = draw.choice([draw.randint(-2, 600), draw.choice((8, 16, 32, 64, 128))])
        micro, processes = draw.choice([None, None, draw.randint(0, 12)]), draw.randint(1, 9)
        sentence = batch.problem(whole, micro, processes)
        if sentence is None:
            cut = batch.split(whole, micro, processes)
            assert cut.total == whole == cut.micro * cut.accumulation * cut.processes
            assert cut.processes == processes
            assert cut.micro == micro if micro is not None else 1 <= cut.micro <= batch.MICRO_BATCH_LIMIT
            passed += 1
        elif micro is None or micro >= 1:
            offered = re.findall(r"\d+", sentence.rpartition("use ")[2])
            assert offered
            assert all(batch.problem(int(value), micro, processes) is None for value in offered), sentence
    assert passed > 1000


@pytest.mark.parametrize(
    ("whole", "micro", "processes", "expected"),
    [(16, None, 1, (8, 2)), (16, 4, 2, (4, 2)), (7, None, 1, (7, 1)), (22, None, 2, (1, 11)), (8, 8, 1, (8, 1))],
)
def test_split(whole: int, micro: int | None, processes: int, expected: tuple[int, int]) -> None:
    cut = batch.split(whole, micro, processes)
    assert (cut.micro, cut.accumulation) == expected


def test_largest_micro_batch_is_taken() -> None:
    assert [batch.split(whole, None, 1).micro for whole in (1, 5, 12, 13, 24)] == [1, 5, 6, 1, 8]


def test_sentences() -> None:
    assert str(batch.split(16, 2, 4)) == "16 = 2 per forward pass x 2 accumulated x 4 processes"
    assert batch.problem(7, None, 2) == "train.global_batch=7 does not divide by 2 processes = 2: use 6 or 8."
    assert (
        batch.problem(1, 3, 2)
        == "train.global_batch=1 does not divide by 2 processes x train.micro_batch=3 = 6: use 6."
    )
    assert batch.problem(4, 0, 1) == "train.micro_batch=0 must be at least 1."
