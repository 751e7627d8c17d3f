"""Measured memory peaks and what the plan says about the same runs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from composing import assembled, machine
from sft_exp import memory
from sft_exp.memory import CONTEXT_GIB, GIB

CASES = Path(__file__).parent / "cases" / "memory"
MODELS = {"0.5b": "qwen0.5b", "1.5b": "qwen1.5b", "7b": "qwen7b"}


@dataclass(frozen=True)
class Point:
    """One measured run; `overrides` compose it, `measured_gib` is torch's peak or, if `whole`, the card's."""

    source: str
    name: str
    overrides: tuple[str, ...]
    measured_gib: float
    ranks: int = 1
    whole: bool = False

    @property
    def planned_gib(self) -> float:
        """The plan's value for what was measured."""
        planned = memory.plan(assembled(*self.overrides, on=machine("h200", self.ranks)))
        assert planned is not None
        return planned.allocated_gib + (CONTEXT_GIB if self.whole else 0)

    @property
    def error(self) -> float:
        """Planned over measured, less one."""
        return self.planned_gib / self.measured_gib - 1


def points() -> list[Point]:
    """All points, by source."""
    return [*shapes(), *short_rows(), *two_cards(), *runs(), *published()]


def shapes() -> Iterator[Point]:
    """Three steps of TRL's trainer on one H200 without DeepSpeed (tests/cases/memory/h200.jsonl)."""
    for line in (CASES / "h200.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        micro, packing, full = row["micro_batch"], row["packing"], row["adapter"] == "full"
        overrides = [
            f"model={MODELS[row['shape']]}", f"adapter={row['adapter']}", "zero=0", "hw=h200",
            f"train.micro_batch={micro}", f"train.global_batch={micro}", f"dataset.max_length={row['max_length']}",
            f"train.gradient_checkpointing={row['checkpointing']}", f"train.packing={packing}",
            f"train.optimizer={row['optim']}",
            f"train.precision={'fp16' if row['precision'] == 'fp16amp' else 'bf16'}",
            # Variable-length attention repeats keys and values as flex_attention does.
            f"model.attention={'flex_attention' if packing else 'sdpa'}",
        ]  # fmt: skip
        if row["precision"] == "bf16" and full:
            overrides += ["model.dtype=bfloat16", "train.master_weights=false"]
        marks = [row["precision"], "checkpointing" if row["checkpointing"] else "", "packed" if packing else ""]
        name = " ".join(
            word for word in (row["shape"], row["adapter"], *marks, f"{micro} x {row['max_length']}") if word
        )
        yield Point("TRL alone", name, tuple(overrides), row["peak_allocated_gib"])


SHORT = (
    ("bf16", "full", "0", 33.5), ("bf16", "full", "2", 30.7), ("bf16", "full", "3", 31.8), ("bf16", "lora", "0", 26.0),
    ("bf16", "lora", "2", 23.8), ("bf16", "lora", "3", 23.5), ("fp16", "full", "0", 22.1), ("fp16", "lora", "0", 13.6),
    ("fp16", "qlora", "0", 11.7), ("fp16", "full", "2", 20.0),
)  # fmt: skip
"""docs/precision.md: precision, adapter, ZeRO stage, peak."""
TWO = (("full", "0", 22.2), ("full", "1", 16.4), ("full", "2", 16.4), ("full", "3", 17.5), ("lora", "0", 13.6))
"""docs/hardware.md: adapter, ZeRO stage, peak per card."""


def short_rows() -> Iterator[Point]:
    """docs/precision.md: sft_exp on one H200, 0.5B, global batch 16, micro batch 16 (bf16) and 8 (fp16)."""
    for precision, adapter, zero, peak in SHORT:
        micro = 16 if precision == "bf16" else 8
        yield Point(
            "docs/precision.md", f"0.5b {adapter} zero={zero} {precision} {micro} x 1024",
            (*_half_b(adapter, zero, micro), "hw=h200", f"train.precision={precision}"), peak,
        )  # fmt: skip


def two_cards() -> Iterator[Point]:
    """docs/hardware.md: sft_exp on two H200."""
    for adapter, zero, peak in TWO:
        overrides = (*_half_b(adapter, zero, 8), "hw=h200x2")
        yield Point("docs/hardware.md", f"0.5b {adapter} zero={zero} bf16 8 x 1024, 2 GPUs", overrides, peak, ranks=2)


def _half_b(adapter: str, zero: str, micro: int) -> tuple[str, ...]:
    return (
        "model=qwen0.5b", f"adapter={adapter}", f"zero={zero}", f"train.micro_batch={micro}", "train.global_batch=16",
        "dataset.max_length=1024", "model.attention=sdpa", "train.optimizer=adamw_torch",
    )  # fmt: skip


def runs() -> Iterator[Point]:
    """Lines of benchmarks/memory.py (tests/cases/memory/runs.jsonl), where there are some."""
    file = CASES / "runs.jsonl"
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        row = json.loads(line)
        if "result" in row:
            overrides = (*row["overrides"], "model.attention=sdpa")
            if not any(word.startswith("train.optimizer=") for word in overrides):
                overrides += ("train.optimizer=adamw_torch",)  # the default when they were measured
            capped = f", {row['cap_gib']:g} GiB cap" if row["cap_gib"] else ""
            yield Point("sft_exp", row["name"] + capped, overrides, row["result"]["peak_memory_gib"])


QWEN = {"1.8b": (2048, 5504, 24, 16, 151936), "7b": (4096, 11008, 32, 32, 151936), "14b": (5120, 13696, 40, 40, 152064)}
"""First Qwen generation: hidden, inner, layers, heads, words."""
PUBLISHED = {
    ("1.8b", "lora"): (6.7, 7.4, 8.4, 11.0, 16.2, 21.8),
    ("7b", "lora"): (20.1, 20.4, 21.5, 23.8, 29.7, 36.6),
    ("14b", "lora"): (34.6, 35.1, 35.3, 37.4, 42.5, 55.2),
    ("1.8b", "qlora"): (5.8, 6.0, 6.6, 7.8, 10.2, 15.8),
    ("7b", "qlora"): (11.5, 11.5, 12.3, 13.9, 16.9, 23.5),
    ("14b", "qlora"): (18.7, 18.4, 18.9, 19.9, 23.0, 27.9),
}
"""README of QwenLM/Qwen, "Profiling of Memory and Speed": GB at 256, 512, 1024, 2048, 4096, 8192 tokens."""


def published() -> Iterator[Point]:
    """Another program with full logits on an A100; its Q-LoRA is GPTQ and not nf4."""
    for (size, adapter), values in PUBLISHED.items():
        hidden, inner, layers, heads, words = QWEN[size]
        shape = {
            "model_type": "qwen2", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": words,
            "max_position_embeddings": 8192, "tie_word_embeddings": False,
        }  # fmt: skip
        for length, value in zip((256, 512, 1024, 2048, 4096, 8192), values, strict=True):
            overrides = (
                "model=tiny", *(f"model.shape.{key}={number}" for key, number in shape.items()), f"adapter={adapter}",
                "adapter.r=64", "zero=0", "hw=h200", "train.micro_batch=1", "train.global_batch=8",
                f"dataset.max_length={length}", "train.gradient_checkpointing=true", "model.attention=flex_attention",
                "train.extra={label_smoothing_factor: 0.1}", "train.optimizer=adamw_torch",
            )  # fmt: skip
            source = f"Qwen README, {adapter}"
            yield Point(source, f"{size} {adapter} 1 x {length}", overrides, value * 1e9 / GIB, whole=True)
