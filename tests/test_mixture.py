"""How many conversations of each part a mixture uses."""

import random

import pytest

from sft_exp.mixture import parts, shares
from sft_exp.schema import Dataset, DatasetKind, Part


@pytest.mark.parametrize(
    ("available", "weights", "expected"),
    [
        ([7, 3], [None, None], [7, 3]),  # without weights everything
        ([5], [2.0], [5]),
        ([100, 100], [3, 1], [100, 33]),
        ([30, 100], [3, 1], [30, 10]),
        ([100, 100], [0.75, 0.25], [100, 33]),
        ([10, 100], [0.1, 0.3], [10, 30]),  # as binary floats these would give 29
        ([1000, 10, 500], [1, 1, 2], [10, 10, 20]),
        ([10, 10], [1, 1e6], [0, 10]),
        ([10, 0], [1, 1], [0, 0]),
    ],
)
def test_shares(available: list[int], weights: list[float | None], expected: list[int]) -> None:
    assert shares(available, weights) == expected


def test_any_mixture_is_in_proportion_and_as_large_as_can_be() -> None:
    draw = random.Random(0)
    for _ in range(2000):
        count = draw.randint(1, 5)
        available = [draw.randint(0, 10_000) for _ in range(count)]
        weights = [10 ** draw.uniform(-3, 3) for _ in range(count)]
        used = shares(available, weights)
        assert all(0 <= some <= all_ for some, all_ in zip(used, available, strict=True))
        assert any(some == all_ for some, all_ in zip(used, available, strict=True))
        scale = min(all_ / weight for all_, weight in zip(available, weights, strict=True))
        assert all(abs(some - weight * scale) < 0.51 for some, weight in zip(used, weights, strict=True))


def test_a_dataset_without_a_mixture_is_one_part() -> None:
    plain = Dataset(kind=DatasetKind.hub, path="ORG/NAME", config="c", split="s", revision="r", limit=3)
    assert parts(plain) == {
        "": Part(kind=DatasetKind.hub, path="ORG/NAME", config="c", split="s", revision="r", limit=3)
    }
    mixed = {"a": Part(path="a.jsonl")}
    assert parts(Dataset(mixture=mixed)) == mixed
