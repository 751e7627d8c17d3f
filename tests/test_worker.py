"""What a rank does before it trains."""

import subprocess
import sys
from pathlib import Path

import pytest

from composing import resolved
from sft_exp.worker import not_needed


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), ["deepspeed", "bitsandbytes"]),
        (("zero=2", "hw=cpu2"), ["bitsandbytes"]),
        (("adapter=qlora",), ["deepspeed"]),
        (("train.optimizer=adamw_8bit",), ["deepspeed"]),
        (("adapter=qlora", "zero=2"), []),
    ],
)
def test_libraries_that_are_left_out(here: Path, overrides: tuple[str, ...], expected: list[str]) -> None:
    assert not_needed(resolved(*overrides)) == expected


@pytest.mark.slow
def test_training_half_imports_without_them() -> None:
    code = (
        "import sys; sys.modules.update(deepspeed=None, bitsandbytes=None); import sft_exp.train, sft_exp.trainer;"
        "assert sys.modules['deepspeed'] is None and sys.modules['bitsandbytes'] is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
