"""Rules about the architecture's numbers."""

import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path

from sft_exp import installed, sizes
from sft_exp.checkpoint import SHIPPED_TOKENIZER, looks_local
from sft_exp.nearest import closest
from sft_exp.schema import Model, Shape, Weights

USUAL = ("llama", "qwen2")
"""Architectures of every transformers: for these nothing has to be read."""


def problems(model: Model) -> Iterator[str]:
    """One sentence for each number with which no model can be built."""
    yield from _positive(model.shape)
    if model.weights is Weights.random and not sizes.missing(model.shape):
        yield from _architecture(model.shape)
        yield from _heads(model.shape)
        yield from _vocabulary(model)


def _positive(shape: Shape) -> Iterator[str]:
    for field in dataclasses.fields(shape):
        value = getattr(shape, field.name)
        # A local config.json may hold lists, one number for each layer.
        if isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
            yield f"model.shape.{field.name}={value} must be above 0."


def _architecture(shape: Shape) -> Iterator[str]:
    name = str(shape.model_type)
    known = () if name in USUAL else architectures()
    if known and name not in known:
        hint = closest(name, known) or " Use one such as llama, qwen2 or mistral."
        yield f"model.shape.model_type={name} is no causal language model of the installed transformers.{hint}"


@functools.cache
def architectures() -> tuple[str, ...]:
    """Model types that AutoModelForCausalLM builds."""
    table = installed.assigned("transformers/models/auto/modeling_auto.py", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")
    return tuple(installed.texts(table))


def _heads(shape: Shape) -> Iterator[str]:
    hidden, heads, groups = shape.hidden_size or 0, shape.num_attention_heads or 0, shape.num_key_value_heads or 0
    if min(hidden, heads, groups) < 1:
        return
    if hidden % heads or hidden // heads % 2:
        fitting = [n for n in range(1, hidden // 2 + 1) if hidden % n == 0 and hidden // n % 2 == 0]
        near = sorted(sorted(fitting, key=lambda n: abs(n - heads))[:3])
        hint = f"use {' or '.join(map(str, near))}, or another hidden_size" if near else "use an even hidden_size"
        yield (
            f"model.shape.num_attention_heads={heads} does not cut model.shape.hidden_size={hidden} into heads of an "
            f"even width: {hint}."
        )
    if heads % groups:
        fitting = [n for n in range(1, heads + 1) if heads % n == 0]
        yield (
            f"model.shape.num_key_value_heads={groups} does not divide model.shape.num_attention_heads={heads}: use "
            f"{' or '.join(map(str, fitting))}."
        )


def _vocabulary(model: Model) -> Iterator[str]:
    rows, given = tokenizer_rows(model), model.shape.vocab_size or 0
    if rows is not None and 0 < given < rows:
        yield sizes.vocabulary_problem(given, rows)


def tokenizer_rows(model: Model) -> int | None:
    """Rows that the tokenizer of random weights needs; None where only the hub or a library knows."""
    if model.tokenizer and not looks_local(model.tokenizer):
        return None
    file = Path(model.tokenizer or SHIPPED_TOKENIZER).expanduser() / "tokenizer.json"
    try:
        tokenizer = json.loads(file.read_text(encoding="utf-8"))
        vocabulary = tokenizer["model"]["vocab"]  # token -> id, or for Unigram a list of (token, score)
        ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
        return 1 + max([*ids, *(int(token["id"]) for token in tokenizer.get("added_tokens", []))])
    except (OSError, ValueError, LookupError, TypeError):
        return None
