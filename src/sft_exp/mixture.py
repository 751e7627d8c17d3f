"""Several sources as one dataset: which parts there are, and how many conversations of each are used."""

from collections.abc import Sequence
from fractions import Fraction

from sft_exp.schema import Dataset, Part


def parts(config: Dataset) -> dict[str, Part]:
    """The parts by name; a dataset without a mixture is one part without a name."""
    if config.mixture:
        return config.mixture
    return {
        "": Part(
            path=config.path,
            kind=config.kind,
            config=config.config,
            split=config.split,
            revision=config.revision,
            limit=config.limit,
        )
    }


def shares(available: Sequence[int], weights: Sequence[float | None]) -> list[int]:
    """How many conversations of each part are used, given how many it has.

    Without weights all are. With weights (> 0, one for each part) it is the largest mixture in their proportion, to
    within half a conversation, that needs none twice: the part that is smallest for its weight is used up.
    """
    # A weight means the decimal that was written: as binary floats 0.3 is a little less than three times 0.1.
    exact = [Fraction(repr(weight)) for weight in weights if weight is not None]
    if not exact:
        return list(available)
    scale = min(count / weight for count, weight in zip(available, exact, strict=True))
    return [int(weight * scale + Fraction(1, 2)) for weight in exact]


def place(part: str, name: str) -> str:
    """What the places of a part's rows call a file, such as `chat/chats.jsonl`."""
    return f"{part}/{name}" if part else name


def option(part: str) -> str:
    """Where the fields of a part are set."""
    return f"dataset.mixture.{part}" if part else "dataset"
