"""`plan` shows all that would run and runs nothing."""

import json
import re
import sys
from pathlib import Path

import pytest

from composing import Compose
from sft_exp import cli, rundir
from sft_exp.errors import ConfigError


def plan(*argv: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["sft_exp"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cli.start(["plan", *argv])
    return capsys.readouterr().out


def test_four_cards_that_are_not_here(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = plan("model=qwen0.5b", "hw=4090x4", "zero=2", "train.seed=7", monkeypatch=monkeypatch, capsys=capsys)
    assert list(here.iterdir()) == []
    for line in (
        r"train.seed +7 +\[command line\]",
        r"zero.stage +2 +\[zero=2\]",
        r"hw.processes +4 +\[hw=4090x4\]",
        r"model.dtype +\"bfloat16\" +\[decided for this machine and run\]",
        r"16 = 4 per forward pass x 1 accumulated x 4 processes",
        r"1 epochs; the number of steps follows",
        r"494,032,768 in all, 494,032,768 trained \(100.00%\)",
        r"-m torch.distributed.run .*--nproc-per-node 4 .*-m?.*sft_exp.worker .*/outputs/DATE/TIME-qwen0.5b-full-z2-ID",
        r"NCCL_P2P_DISABLE=1",
        r"not on this machine: .*hw=4090x4 needs 4 GPUs",
    ):
        assert re.search(line, text), line
    block = json.loads(text.split("DeepSpeed\n")[1].split("\n\n")[0])
    assert block["zero_optimization"]["stage"] == 2
    assert block["train_micro_batch_size_per_gpu"] == 4
    assert block["bf16"]["enabled"] is True


def test_one_process_without_deepspeed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = plan("model=tiny", "hw=cpu", "adapter=lora", "train.max_steps=3", monkeypatch=monkeypatch, capsys=capsys)
    assert "DeepSpeed\n  not used" in text
    assert "3 steps, 48 conversations" in text
    assert "not on this machine" not in text
    trained = re.search(r"([\d,]+) in all, ([\d,]+) trained", text)
    assert trained
    assert 0 < int(trained[2].replace(",", "")) < int(trained[1].replace(",", ""))


def test_warnings_are_shown(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = plan("model=tiny", "hw=cpu", "zero=2", monkeypatch=monkeypatch, capsys=capsys)
    assert "note: zero=2 has nothing to shard" in text


def test_one_table_over_combinations(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which of these can I run? One row for each, with the verdict and what would fit instead."""
    typed = ("-m", "model=qwen0.5b,r1-qwen7b", "adapter=full,lora", "zero=0,3", "hw=4090x4")
    text = plan(*typed, monkeypatch=monkeypatch, capsys=capsys)
    rows = [line.split() for line in text.partition("\n\n")[0].splitlines()]
    assert rows[0][:5] == ["model", "adapter", "zero", "micro", "batch"]
    assert len(rows) == 9
    found = {tuple(row[:3]): " ".join(row[9:]) for row in rows[1:]}
    assert found["qwen0.5b", "full", "0"] == "fits"
    assert found["r1-qwen7b", "lora", "3"] == "fits"
    assert found["r1-qwen7b", "full", "0"].startswith("does not fit adapter=lora")
    assert "DeepSpeed" not in text
    assert list(here.iterdir()) == []


def test_a_refused_combination_is_a_row(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = plan("-m", "model=tiny", "hw=cpu2", "train.global_batch=7,8", monkeypatch=monkeypatch, capsys=capsys)
    first, second = text.splitlines()[1:3]
    assert re.search(r"^7 .*refused +train.global_batch=7 does not divide", first)
    assert re.search(r"^8 +4 x 1 .*not planned", second)


def test_memory(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Components add up to the total, and what does not fit comes with what does."""
    text = plan("model=qwen7b", "hw=4090x1", monkeypatch=monkeypatch, capsys=capsys)
    block = text.partition("\nmemory\n")[2].partition("\n\n")[0]
    sizes = {name.strip(): float(size) for name, size in re.findall(r"^  (\D+?) +([\d.]+) GiB", block, re.M)}
    total, host = sizes.pop("per GPU"), sizes.pop("host, all ranks")
    assert total == pytest.approx(sum(sizes.values()), abs=0.05)
    assert host > 28
    assert "does not fit: 135.8 of 24 GiB" in block
    assert re.search(r"^    adapter=lora \([\d.]+ GiB: another result", block, re.M)
    assert re.search(r"zero=2_offload .*GiB of host memory: .*several times slower", block)
    small = plan("model=tiny", "hw=cpu", monkeypatch=monkeypatch, capsys=capsys)
    assert "memory\n  not planned" in small


def test_secrets_are_not_shown(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecretsecret")
    text = plan("hw=cpu", "+hw.env.https_proxy='http://u:secret@h:1'", monkeypatch=monkeypatch, capsys=capsys)
    shown = text.partition("\nenvironment\n")[2]
    assert "https_proxy=http://h:1" in shown
    assert "secret" not in shown


def test_mistakes_are_refused(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"train\.global_batch=7"):
        plan("hw=4090x4", "train.global_batch=7", monkeypatch=monkeypatch, capsys=capsys)


def test_a_resumed_run_is_what_its_folder_says(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], compose: Compose
) -> None:
    """With what may change, and without anything else."""
    request = compose("model=tiny", "hw=cpu", "train.max_steps=3", "train.seed=5")
    request.folder = str(here / "run")
    rundir.create(request)
    text = plan("resume=run", "train.max_steps=7", monkeypatch=monkeypatch, capsys=capsys)
    assert re.search(r"train.seed +5 ", text)
    assert "7 steps, 112 conversations" in text
    assert re.search(r"model.name +\"tiny\"", text)
    with pytest.raises(ConfigError, match=r"train\.seed cannot change when a run is resumed"):
        plan("resume=run", "train.seed=6", monkeypatch=monkeypatch, capsys=capsys)
