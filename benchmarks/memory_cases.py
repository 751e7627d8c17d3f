"""The combinations that benchmarks/memory.py runs, and those that it runs under a cap."""

from dataclasses import dataclass

STEPS = 3
"""Optimizer steps; the second one has everything that later ones have."""


@dataclass(frozen=True)
class Case:
    """One combination. `size` is a rough peak in GiB, which only decides what may run at the same time."""

    model: str
    adapter: str
    zero: str
    precision: str
    checkpointing: bool
    length: int
    micro: int
    size: int
    packing: bool = False
    accumulation: int = 1

    @property
    def name(self) -> str:
        """Readable key of the results."""
        marks = "".join(f"-{mark}" for mark, on in (("ckpt", self.checkpointing), ("packed", self.packing)) if on)
        return (
            f"{self.model}-{self.adapter}-z{self.zero}-{self.precision}-{self.length}"
            f"-b{self.micro}x{self.accumulation}{marks}"
        )

    @property
    def optimizer(self) -> str:
        """What `auto` takes; points keep it, since the default may change."""
        return "adamw_torch" if self.precision == "fp16" and self.zero == "0" else "adamw_torch_fused"

    def overrides(self) -> list[str]:
        """What is typed after `python -m sft_exp`."""
        return [
            f"model=qwen{self.model}", "model.path=null", "model.weights=random", f"adapter={self.adapter}",
            f"zero={self.zero}", f"train.precision={self.precision}", f"dataset.max_length={self.length}",
            f"train.gradient_checkpointing={str(self.checkpointing).lower()}", f"train.micro_batch={self.micro}",
            f"train.global_batch={self.micro * self.accumulation}", f"train.packing={str(self.packing).lower()}",
            f"train.max_steps={STEPS}", "train.logging_steps=1", "dataset=jsonl", "dataset.eval_fraction=0",
            "hw=h200", "tracking=none", f"train.optimizer={self.optimizer}",
        ]  # fmt: skip


CASES = (
    # The first offload compiles, so it starts first.
    Case("0.5b", "full", "2_offload", "bf16", True, 1024, 4, 9),
    Case("7b", "lora", "0", "bf16", True, 1024, 2, 18),
    Case("0.5b", "full", "0", "bf16", False, 1024, 4, 15),
    Case("0.5b", "full", "0", "fp16", True, 1024, 4, 9, accumulation=2),
    Case("0.5b", "full", "0", "bf16", True, 4096, 1, 10, packing=True),
    Case("0.5b", "full", "0", "bf16", True, 4096, 2, 10, accumulation=2),
    Case("0.5b", "full", "2", "bf16", False, 1024, 4, 19, accumulation=2),
    Case("0.5b", "full", "2", "fp16", True, 4096, 2, 11),
    Case("0.5b", "full", "3", "bf16", True, 1024, 4, 11, accumulation=2),
    Case("0.5b", "full", "3", "fp16", False, 1024, 2, 14),
    Case("0.5b", "full", "3_offload", "bf16", True, 4096, 2, 9),
    Case("0.5b", "lora", "0", "bf16", False, 1024, 4, 12, packing=True),
    Case("0.5b", "lora", "3", "fp16", True, 4096, 2, 6),
    Case("0.5b", "qlora", "0", "fp16", False, 1024, 4, 10),
    Case("0.5b", "qlora", "2", "bf16", True, 4096, 2, 6),
    Case("7b", "lora", "0", "bf16", False, 1024, 2, 29),
    Case("1.5b", "full", "0", "bf16", True, 1024, 4, 27, accumulation=2),
    Case("1.5b", "full", "0", "bf16", False, 4096, 1, 34),
    Case("1.5b", "full", "2", "bf16", True, 1024, 4, 30),
    Case("1.5b", "full", "3", "bf16", False, 4096, 1, 40),
    Case("1.5b", "full", "2_offload", "fp16", True, 4096, 1, 15),
    Case("1.5b", "full", "3_offload", "fp16", True, 1024, 4, 15),
    Case("7b", "qlora", "0", "bf16", True, 4096, 2, 20),
    Case("1.5b", "lora", "0", "bf16", False, 4096, 1, 20, packing=True),
    Case("1.5b", "lora", "2", "fp16", True, 1024, 4, 6),
    Case("1.5b", "qlora", "0", "bf16", True, 4096, 2, 8),
    Case("7b", "lora", "3", "bf16", True, 1024, 2, 24),
    Case("7b", "qlora", "2", "fp16", False, 1024, 1, 20),
)

NEAR_24 = (
    Case("0.5b", "full", "3_offload", "bf16", False, 1024, 12, 24),
    Case("1.5b", "full", "2_offload", "bf16", False, 1024, 8, 24),
    Case("7b", "lora", "3", "bf16", True, 1024, 12, 24),
    Case("0.5b", "full", "0", "bf16", False, 1024, 8, 24),
    Case("0.5b", "full", "0", "bf16", False, 1024, 10, 24),
    Case("0.5b", "full", "2", "bf16", False, 1024, 8, 24),
    Case("0.5b", "full", "2", "bf16", False, 1024, 10, 24),
    Case("0.5b", "full", "2", "bf16", False, 1024, 12, 24),
    Case("0.5b", "full", "3", "bf16", False, 1024, 8, 24),
    Case("0.5b", "full", "3", "bf16", False, 1024, 10, 24),
    Case("7b", "lora", "0", "bf16", True, 4096, 2, 24),
    Case("7b", "lora", "0", "bf16", False, 1024, 1, 24),
    Case("1.5b", "lora", "0", "bf16", False, 1024, 6, 24),
    Case("1.5b", "lora", "0", "bf16", False, 1024, 8, 24),
    Case("1.5b", "lora", "2", "bf16", False, 1024, 8, 24),
    Case("7b", "qlora", "0", "bf16", False, 1024, 2, 24),
    Case("7b", "qlora", "0", "bf16", False, 1024, 3, 24),
    Case("1.5b", "full", "0", "bf16", True, 1024, 4, 24),
)
NEAR_32 = (
    # Planned as fits, 84 to 92 % of the cap.
    Case("1.5b", "full", "2_offload", "bf16", False, 1024, 8, 32),
    Case("7b", "lora", "3", "bf16", True, 1024, 24, 32),
    Case("7b", "lora", "0", "bf16", False, 1024, 2, 32),
    Case("0.5b", "full", "0", "bf16", False, 1024, 12, 32),
    Case("0.5b", "full", "2", "bf16", False, 1024, 14, 32),
    Case("0.5b", "full", "3", "bf16", False, 1024, 12, 32),
    Case("1.5b", "full", "0", "bf16", False, 1024, 2, 32),
    Case("1.5b", "full", "3", "bf16", True, 1024, 8, 32),
    Case("1.5b", "lora", "0", "bf16", False, 1024, 8, 32),
    # Tight, 97 to 104 %.
    Case("0.5b", "full", "0", "bf16", False, 1024, 14, 32),
    Case("0.5b", "full", "2", "bf16", False, 1024, 16, 32),
    Case("0.5b", "full", "3", "bf16", False, 1024, 16, 32),
    Case("1.5b", "full", "2", "bf16", True, 1024, 4, 32),
    Case("1.5b", "full", "3", "bf16", False, 1024, 2, 32),
    Case("1.5b", "lora", "2", "bf16", False, 1024, 10, 32),
    Case("7b", "qlora", "0", "bf16", False, 1024, 4, 32),
    # Does not fit, 107 to 117 %.
    Case("1.5b", "full", "2_offload", "bf16", False, 1024, 10, 32),
    Case("0.5b", "full", "0", "bf16", False, 1024, 16, 32),
    Case("0.5b", "full", "2", "bf16", False, 1024, 18, 32),
    Case("1.5b", "lora", "0", "bf16", False, 1024, 10, 32),
    Case("7b", "lora", "0", "bf16", False, 1024, 3, 32),
    Case("7b", "qlora", "0", "bf16", False, 1024, 5, 32),
)
CAPPED = {24: NEAR_24, 32: NEAR_32}
"""Cap in GiB -> runs whose plans lie near it: three to five minutes, three or four at a time."""
