"""`adapter.target_modules`: the names it holds, and those that an architecture has."""

from collections.abc import Sequence

from sft_exp.schema import Adapter

ALL_LINEAR = "all-linear"
SEPARATE = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
FUSED = ("down_proj", "gate_up_proj", "o_proj", "qkv_proj")
LINEAR = {
    **dict.fromkeys(("gemma", "gemma2", "granite", "llama", "mistral", "olmo2", "qwen2", "qwen3", "smollm3"), SEPARATE),
    "phi3": FUSED,
}
"""Linear layers of common architectures, as `adapter.linear_names` finds them; a test compares them."""


def names(adapter: Adapter) -> list[str]:
    """Names of modules as the user gave them; all linear layers if there is no field."""
    return [name.strip() for name in (adapter.target_modules or ALL_LINEAR).split(",") if name.strip()]


def problem(adapter: Adapter, known: Sequence[str]) -> str | None:
    """One sentence for names that are none of the `known` linear layers; without these only for an empty list."""
    given = names(adapter)
    use = f"use {ALL_LINEAR} or some of {', '.join(known or SEPARATE)}."
    if not given:
        return f"adapter.target_modules={adapter.target_modules!r} holds no name: {use}"
    wrong = [] if given == [ALL_LINEAR] or not known else [name for name in given if name not in known]
    if not wrong:
        return None
    return (
        f"adapter.target_modules={adapter.target_modules}: {', '.join(wrong)} is no linear layer of this model: {use}"
    )
