"""Rows of known length for benchmarks/memory.py."""

import json
import random
from pathlib import Path

from memory_cases import Case

ROWS = 64


def words() -> list[str]:
    """Words that are one token each for the tokenizer shipped with the package, so that lengths are known."""
    import tokenizers

    import sft_exp

    made = tokenizers.Tokenizer.from_file(str(Path(sft_exp.__file__).parent / "assets/tokenizer/tokenizer.json"))
    candidates = (made.decode([index]).strip() for index in range(made.get_vocab_size()))
    return sorted({word for word in candidates if word.isalpha() and len(made.encode(f"a {word}").ids) == 2})


def write_rows(path: Path, length: int, packing: bool) -> None:
    """Plain text of nearly `length` tokens, in turn a little more and less, so that batches are full and padded.

    For packing a third of that, since a row with one conversation needs no mask.
    """
    dice, known = random.Random(length), words()
    with path.open("w", encoding="utf-8") as file:
        for number in range(ROWS * (3 if packing else 1)):
            count = length // 3 - 8 if packing else length + (20 if number % 2 else -20)
            file.write(json.dumps({"text": " ".join(dice.choices(known, k=count))}) + "\n")


def rows_name(case: Case) -> str:
    """File of a case's rows."""
    return f"{case.length}{'-packed' if case.packing else ''}.jsonl"
