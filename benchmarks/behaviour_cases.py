"""Runs made healthy and runs made sick on purpose, and what the verdict on each should begin with."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sft_exp.files import ASSETS

Row = dict[str, list[dict[str, str]]]
Pair = tuple[str, str]

COMMON = (
    "model=smollm2-135m", "dataset=jsonl", "tracking=none", "adapter=lora", "dataset.eval_fraction=0.1",
    "dataset.max_length=256", "train.global_batch=8", "train.learning_rate=3e-4", "train.scheduler=cosine",
    "train.warmup=0.1", "train.logging_steps=1",
)  # fmt: skip
THINKER = "thinker"
"""Case whose model the cases about think blocks begin with: SmolLM2 itself does not think."""


@dataclass(frozen=True)
class Case:
    """One kind of run."""

    name: str
    verdict: tuple[str, ...]
    """Names, one of which a reason must begin with; empty where the run must be healthy."""
    overrides: tuple[str, ...] = ()
    rows: Callable[[list[Pair]], list[Pair]] = list
    """From the sample's questions and answers to those that are trained."""
    base: str | None = None
    """Case whose model it begins with."""
    repeats: bool = False
    """Many epochs on few rows: more steps than the others."""


def chunked(pairs: list[Pair]) -> list[Pair]:
    """Answers inside a pair of added tokens."""
    return [(question, f"<chunk>{answer}</chunk>") for question, answer in pairs]


def thinking(pairs: list[Pair]) -> list[Pair]:
    """Answers behind a think block."""
    return [
        (question, f"<think>\nThe question is: {question} I should answer it briefly.\n</think>\n\n{answer}")
        for question, answer in pairs
    ]


def few(pairs: list[Pair]) -> list[Pair]:
    """Sixteen rows, of which half are kept for evaluation."""
    return pairs[:16]


TOKENS = ("model.special_tokens=['<chunk>','</chunk>']",)
CASES = (
    Case("healthy", ()),
    Case("end token masked out", ("end token not trained", "never stops"), ("dataset.train_end=false",)),
    Case("added tokens trained", (), TOKENS, chunked),
    Case("added tokens untrained", ("added tokens",), (*TOKENS, "model.train_special_tokens=false"), chunked),
    Case(
        "learning rate x 50",
        ("forgot", "repeats itself", "says the same", "loss diverged"),
        ("train.learning_rate=1.5e-2",),
    ),
    Case("300 epochs on 8 rows", ("memorised its rows",), ("dataset.eval_fraction=0.5",), few, repeats=True),
    Case(THINKER, (), ("adapter=full", "train.learning_rate=1e-4"), thinking),
    Case("think blocks kept", (), rows=thinking, base=THINKER),
    Case("think blocks stripped", ("lost its reasoning",), base=THINKER),
)


def pairs() -> list[Pair]:
    """Questions and answers of the sample's conversations of one turn."""
    lines = (ASSETS / "sample.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line)["messages"] for line in lines]
    return [(row[0]["content"], row[1]["content"]) for row in rows if [m["role"] for m in row] == ["user", "assistant"]]


def write(case: Case, folder: Path) -> Path:
    """The rows of a case as a file."""
    file = folder / f"{case.name.replace(' ', '_')}.jsonl"
    rows = [{"prompt": question, "completion": answer} for question, answer in case.rows(pairs())]
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file
