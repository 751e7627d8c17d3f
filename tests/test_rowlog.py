"""Which rows were in which step: the files, and what training writes into them."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from trl import pack_dataset

from sft_exp import packing, rowlog
from sft_exp.rowloss import RowCollator, RowLosses, sums
from sft_exp.rundir import RunDir
from training import logged, train


def numbered(steps: list[int], first: int = 0) -> Any:
    count = len(steps)
    return rowlog.records(step=steps, row=range(first, first + count), tokens=[7] * count, loss=np.full(count, 0.5))


def test_records_have_the_documented_bytes(tmp_path: Path) -> None:
    rowlog.append(tmp_path / "rank0.bin", rowlog.records(step=[1], row=[258], tokens=[3], loss=[1.0]))
    assert (tmp_path / "rank0.bin").read_bytes() == bytes.fromhex("01000000 02010000 03000000 0000803f")
    assert np.dtype(rowlog.FIELDS).itemsize == rowlog.SIZE


def test_ranks_are_read_together_by_step(tmp_path: Path) -> None:
    assert len(rowlog.read(tmp_path)) == 0
    rowlog.append(tmp_path / "rank0.bin", numbered([1, 2, 2], first=0))
    rowlog.append(tmp_path / "rank2.bin", numbered([1, 2], first=20))
    rowlog.append(tmp_path / "rank10.bin", numbered([1, 2], first=100))
    assert rowlog.read(tmp_path)["row"].tolist() == [0, 20, 100, 1, 2, 21, 101]


def test_losses_that_are_no_numbers_stay(tmp_path: Path) -> None:
    rows = rowlog.records(step=[1, 1, 1], row=[0, 1, 2], tokens=[1, 1, 1], loss=[math.nan, math.inf, -math.inf])
    rowlog.append(tmp_path / "rank0.bin", rows)
    assert [str(loss) for loss in rowlog.read(tmp_path)["loss"]] == ["nan", "inf", "-inf"]


def test_what_is_repeated_is_cut_off_first(tmp_path: Path) -> None:
    """After step 3: half a record of a killed write, later steps, and a rank that is no longer there."""
    folder = tmp_path / "rows"
    file = rowlog.begin(folder, rank=0, ranks=2, step=0)
    rowlog.append(file, numbered([1, 2, 3, 4, 5]))
    with file.open("ab") as stream:
        stream.write(b"half")
    for rank in (1, 2):
        rowlog.append(rowlog.file_of(folder, rank), numbered([2, 3, 4]))
    rowlog.append(rowlog.begin(folder, rank=0, ranks=2, step=3), numbered([4]))
    assert rowlog._load(rowlog.file_of(folder, 0))["step"].tolist() == [1, 2, 3, 4]
    assert rowlog._load(rowlog.file_of(folder, 1))["step"].tolist() == [2, 3, 4], "that rank cuts it by itself"
    assert rowlog._load(rowlog.file_of(folder, 2))["step"].tolist() == [2, 3]


def test_a_row_is_compared_with_those_of_its_time() -> None:
    """Two steps of 16 rows and two of 8, which share a median; what is no number has no part in it."""
    rows = numbered([1] * 16 + [2] * 16 + [3] * 8 + [4] * 8)
    rows["loss"] = [9.0] * 16 + [5.0] * 15 + [30.0] + [2.0, math.nan] * 4 + [1.0] * 7 + [math.inf]
    assert rowlog.typical_loss(rows).tolist() == [9.0] * 16 + [5.0] * 16 + [1.0] * 16
    assert np.isnan(rowlog.typical_loss(rows[33:34])).all()
    assert len(rowlog.typical_loss(rows[:0])) == 0


class Outputs:
    """What TRL's fused head returns, from losses by position; None where nothing is trained."""

    def __init__(self, losses: list[list[float | None]]) -> None:
        self.log_probs = torch.tensor([[-(loss or 0.0) for loss in row] for row in losses], dtype=torch.bfloat16)
        self.label_mask = torch.tensor([[loss is not None for loss in row] for row in losses])


def test_a_row_has_the_sum_of_its_trained_tokens() -> None:
    found = sums(Outputs([[None, 1.0, 2.0], [4.0, None, None], [None, None, None]]), 3, None)
    assert found.tolist() == [[3.0, 4.0, 0.0], [2.0, 1.0, 0.0]]


def test_packed_rows_are_kept_apart() -> None:
    """Three conversations of 3, 1 and 2 tokens, and padding, which TRL numbers on."""
    conversation = torch.tensor([[0, 0, 0, 1, 2, 2, 3, 4]], dtype=torch.int32)
    found = sums(Outputs([[1.0, 2.0, None, None, 8.0, None, None]]), 3, conversation)
    assert found.tolist() == [[3.0, 0.0, 8.0], [2.0, 0.0, 1.0]]


def test_a_batch_says_its_rows() -> None:
    def count(examples: list[dict[str, Any]]) -> dict[str, Any]:
        return {"rows": len(examples)}

    collate = RowCollator(count)
    assert collate([{"index": 4}, {"index": 2}])["row_index"].tolist() == [4, 2]
    assert collate([{"index": [4, 1]}, {"index": [2]}])["row_index"].tolist() == [4, 1, 2]
    assert collate([{}, {}]) == {"rows": 2}, "rows of an evaluation have no index"


def test_a_row_without_trained_tokens_has_no_loss(tmp_path: Path) -> None:
    losses = RowLosses(tmp_path / "rows")
    losses.begin(rank=0, ranks=1, step=0)
    losses.add(1, torch.tensor([5, 6]), Outputs([[None, None], [1.0, 2.0]]), None)
    losses.write()
    losses.write()
    assert [str(row) for row in rowlog.read(tmp_path / "rows")] == ["(1, 5, 0, nan)", "(1, 6, 2, 1.5)"]


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
def test_packs_are_those_of_trl(strategy: str) -> None:
    """More than one batch of 1,000, so that columns are slices."""
    lengths = np.random.default_rng(0).integers(1, 60, 2500).tolist()
    rows = Dataset.from_dict(
        {
            "input_ids": [[at] * length for at, length in enumerate(lengths)],
            "labels": [[-at] * length for at, length in enumerate(lengths)],
        }
    )
    trl, ours = pack_dataset(rows, 64, strategy), packing.pack(rows.add_column("index", range(2500)), 64, strategy)
    for name in trl.column_names:
        assert list(ours[name]) == list(trl[name]), name
    if strategy == "wrapped":
        assert "index" not in ours.column_names
        return
    for pack in ours:
        of_tokens = [at for at, length in zip(pack["index"], pack["seq_lengths"], strict=True) for _ in range(length)]
        assert pack["input_ids"] == of_tokens


def step_losses(run: RunDir) -> list[float]:
    """Loss of each step from its rows."""
    rows = rowlog.read(run.rows)
    steps = [rows[rows["step"] == step] for step in range(1, rows["step"].max() + 1)]
    return [float((step["loss"] * step["tokens"]).sum() / step["tokens"].sum()) for step in steps]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("train.micro_batch=2",),
        ("adapter=lora",),
        ("model.attention=eager", "train.gradient_checkpointing=true"),
        ("train.packing=true", "dataset.max_length=64", "train.global_batch=2", "train.micro_batch=1"),
        ("train.packing=true", "dataset.max_length=64", "train.global_batch=2", "train.micro_batch=2"),
        ("train.packing=true", "dataset.max_length=64", "train.extra={pad_to_multiple_of: 32, shuffle_dataset: true}"),
    ],
    ids=" ".join,
)
def test_rows_explain_the_logged_loss(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    """Two epochs of 22 conversations: the last batch of each is smaller."""
    run = train(tmp_path, "train.epochs=2", *overrides)
    rows = rowlog.read(run.rows)
    assert step_losses(run) == pytest.approx(logged(run), abs=1e-5)
    assert Counter(rows["row"].tolist()) == dict.fromkeys(range(22), 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`label_smoothing_factor` is deprecated:FutureWarning")
@pytest.mark.parametrize("extra", ["{label_smoothing_factor: 0.1}", "{loss_type: dft}"])
def test_row_losses_are_plain_whatever_is_trained(tmp_path: Path, extra: str) -> None:
    (tmp_path / "a").mkdir()
    plain, other = (
        train(tmp_path, "train.max_steps=1"),
        train(tmp_path / "a", "train.max_steps=1", f"train.extra={extra}"),
    )
    assert rowlog.read(other.rows).tolist() == rowlog.read(plain.rows).tolist()
    norms = [logged(run, "train/grad_norm")[0] for run in (plain, other)]
    assert norms[0] != pytest.approx(norms[1], rel=0.01), "another loss was trained"


@pytest.mark.slow
def test_wrapped_packs_are_not_recorded(tmp_path: Path) -> None:
    run = train(
        tmp_path, "train.packing=true", "dataset.max_length=64", "train.max_steps=2",
        "train.extra={packing_strategy: wrapped}",
    )  # fmt: skip
    assert len(logged(run)) == 2
    assert len(rowlog.read(run.rows)) == 0
