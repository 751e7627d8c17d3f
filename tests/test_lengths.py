"""Numbers about lengths, against values worked out by hand."""

import numpy as np
import pytest

from sft_exp import lengths


def rows(*values: int) -> lengths.Lengths:
    return np.array(values, np.uint32)


def test_quantiles_are_lengths_of_real_rows() -> None:
    assert lengths.quantiles(rows(*range(1, 101))) == {"p50": 50, "p95": 95, "p99": 99, "max": 100}
    assert lengths.quantiles(rows(7)) == {"p50": 7, "p95": 7, "p99": 7, "max": 7}
    assert lengths.quantiles(rows()) == {}


def test_histogram_counts_every_row_once() -> None:
    found = lengths.histogram(rows(1, 2, 2, 40, 1000), bins=10)
    assert sum(count for _, count in found) == 5
    assert found[0] == [100, 4] and found[-1] == [1000, 1]
    long = lengths.histogram(rows(*[10] * 999, 100_000), bins=5)
    assert long == [[2, 0], [4, 0], [6, 0], [8, 0], [10, 999], [12, 1]]  # the last bin is everything above
    assert lengths.histogram(rows()) == []


def test_padding() -> None:
    assert lengths.padded_share(rows(4, 4, 4), batch=2) == 0
    assert lengths.padded_share(rows(1, 3), batch=2) == pytest.approx(1 - 4 / 6)
    assert lengths.padded_share(rows(1, 3), batch=1) == 0
    assert lengths.padded_share(rows(), batch=8) == 0


def test_packing_fills_the_fullest_pack_that_has_room() -> None:
    assert lengths.packed_share(rows(6, 4, 5, 5), max_length=10) == 0
    assert lengths.packed_share(rows(6, 6), max_length=10) == pytest.approx(1 - 12 / 20)
    assert lengths.packed_share(rows(7, 2, 5, 3, 3), max_length=10) == 0  # 7 + 3, 5 + 3 + 2
    assert lengths.packed_share(rows(), max_length=10) == 0
