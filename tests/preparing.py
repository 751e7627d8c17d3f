"""Rows prepared with the shipped tokenizer, and where each of them went."""

import functools
import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from sft_exp import verdict
from sft_exp.dataset import load, prepare
from sft_exp.errors import ConfigError
from sft_exp.prepared import Prepared
from sft_exp.schema import Dataset, Train
from sft_exp.tokenizer import SHIPPED

DATA = Path(__file__).parent / "cases" / "data"


@functools.cache
def shipped() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(SHIPPED)


def write(path: Path, pairs: list[tuple[str, str]]) -> Path:
    rows = [{"question": question, "answer": answer} for question, answer in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def pairs(count: int, start: int = 0) -> list[tuple[str, str]]:
    return [(f"What is {at} + 1?", f"It is {at + 1}.") for at in range(start, start + count)]


def go(path: Path | str, cache: Path, tokenizer: PreTrainedTokenizerFast | None = None, **fields: Any) -> Prepared:
    """Prepare, and refuse what should not be trained, as a run does."""
    return accepted(Dataset(path=str(path), **fields), cache, tokenizer or shipped())


def accepted(config: Dataset, cache: Path, tokenizer: PreTrainedTokenizerFast) -> Prepared:
    identity = [tokenizer.backend_tokenizer.to_str(), str(tokenizer.chat_template)]
    report = prepare(config, identity, lambda: tokenizer, cache=cache)
    if problems := verdict.problems(report, config, Train()):
        raise ConfigError(*problems)
    return report


def numbers(report: Prepared, reason: str) -> list[int]:
    return [int(place.split()[0].rpartition(":")[2]) for place in report.examples.get(reason, [])]


def places(report: Prepared, split: str) -> list[str]:
    return list(load(Path(report.folder), split)["row"])
