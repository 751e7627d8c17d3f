"""Real runs on an NVIDIA GPU, through the command line. Run them with `pytest -m gpu` on a machine that has one."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sft_exp.machine import look

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not look().usable(), reason="needs an NVIDIA GPU and a CUDA build of torch"),
]


def train(folder: Path, *overrides: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Result and metric rows of one run on the card that is there."""
    capability = look().usable()[0].capability
    argv = [f"outputs={folder}", "hw.processes=1", f"hw.capability={capability}", "train.logging_steps=1", *overrides]
    done = subprocess.run([sys.executable, "-m", "sft_exp", *argv], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    run = next(folder.glob("*/*/result.json")).parent
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return json.loads((run / "result.json").read_text()), [row for row in rows if "train/loss" in row]


@pytest.mark.parametrize("zero", ["0", "2", "3"])
@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_bf16_learns_at_each_stage(tmp_path: Path, adapter: str, zero: str) -> None:
    result, rows = train(
        tmp_path, "model=tiny", "hw=h200", f"adapter={adapter}", f"zero={zero}", "train.max_steps=20",
        "train.learning_rate=1e-3",
    )  # fmt: skip
    assert result["steps"] == 20
    assert float(result["loss_last"]) < float(result["loss_first"])
    assert all(float(row["train/grad_norm"]) > 0 for row in rows)
    assert all(0 < float(row["perf/mfu"]) < 1 for row in rows)
    # Not compared: a model this small is smaller than DeepSpeed's buckets and cuBLAS's workspace.
    assert result["planned_memory_gib"] > 0


@pytest.mark.parametrize("adapter", ["full", "lora", "qlora"])
def test_fp16_scales_its_loss(tmp_path: Path, adapter: str) -> None:
    """As on a V100: fp32 trainable weights, a loss scale, no 'Attempting to unscale FP16 gradients'."""
    result, rows = train(tmp_path, "model=tiny", "hw=v100", f"adapter={adapter}", "train.max_steps=12")
    assert result["steps"] == 12
    assert all(float(row["train/loss_scale"]) >= 1 for row in rows)
    assert result["skipped_steps"] is not None
    assert float(rows[-1]["train/loss"]) < 20


def test_stages_agree(tmp_path: Path) -> None:
    losses = {}
    for zero in ("0", "2", "3"):
        _, rows = train(
            tmp_path / zero, "model=tiny", "hw=h200", f"zero={zero}", "train.precision=fp32", "train.max_steps=5"
        )
        losses[zero] = [float(row["train/loss"]) for row in rows]
    for zero in ("2", "3"):
        assert losses[zero] == pytest.approx(losses["0"], abs=1e-3)


def test_doctor(tmp_path: Path) -> None:
    """Every card that is there exchanges the right values; page-locked memory can be had."""
    done = subprocess.run(
        [sys.executable, "-m", "sft_exp", "doctor", "model=tiny", "hw=auto", f"outputs={tmp_path}", "--json"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    states = {line["name"]: line["state"] for line in json.loads(done.stdout)}
    assert states["kernels"] == "ok", done.stdout
    assert states["pinned memory"] == "ok", done.stdout
    assert states["all-reduce"] == ("ok" if len(look().usable()) > 1 else "skip"), done.stdout


@pytest.mark.parametrize(
    ("adapter", "zero"),
    [("full", "0"), ("full", "2"), ("full", "3"), *itertools.product(("lora", "qlora"), ("0", "2"))],
)
def test_added_tokens_are_trained_saved_and_reopened(tmp_path: Path, adapter: str, zero: str) -> None:
    """The part of tests/test_matrix.py that differs on a card: bf16, 4-bit kernels, DeepSpeed's own placement."""
    base = tmp_path / "base"
    train(tmp_path / "first", "model=tiny", "hw=h200", "train.max_steps=1")
    (found,) = (tmp_path / "first").glob("*/*/model")
    found.rename(base)
    data = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{at}", "completion": f"<chunk>It is {at}.</chunk>"} for at in range(40)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result, _ = train(
        tmp_path / "second", "model=tiny", "model.weights=pretrained", f"model.path={base}", "hw=h200",
        f"adapter={adapter}", f"zero={zero}", 'model.special_tokens=["<chunk>","</chunk>"]', "dataset=jsonl",
        f"dataset.path={data}", "train.global_batch=8", "train.max_steps=4", "train.learning_rate=1e-3",
    )  # fmt: skip
    assert result["problems"] == [] and result["saved_tensors"] > 0 and result["not_finite"] == 0
    assert float(result["new_rows_moved_min"]) > 1e-3
