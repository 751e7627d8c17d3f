"""How many conversations of each part of a mixture are used."""

from collections.abc import Sequence


def shares(available: Sequence[int], weights: Sequence[float | None]) -> list[int]:
    """Placeholder until the branch with sources is merged."""
    return list(available)
