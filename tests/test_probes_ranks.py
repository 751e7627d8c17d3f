"""Probes with two ranks: the same measures as in one process, under DistributedDataParallel and ZeRO 2 and 3."""

import json
from pathlib import Path

import pytest

from test_run import run_folder, train

pytestmark = pytest.mark.slow

SMALL = (
    "model=tiny", "train.max_steps=4", "train.eval_steps=2", "train.logging_steps=1", "tracking=none",
    "eval.probes=true", "eval.count=5", "eval.tokens=8", "eval.answers=3", "eval.budget=1e9", "dataset.limit=120",
    "train.learning_rate=1e-3",
)  # fmt: skip
MEASURES = ("perplexity", "unseen_loss", "p_eos", "tokens", "distinct_2")


def rows(run: Path) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if "probe/ended" in row]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("single")
    train(folder, *SMALL, "hw=cpu")
    return run_folder(folder)


@pytest.mark.parametrize("more", [("zero=0",), ("zero=2",), ("zero=3",), ("zero=3", "adapter=lora")], ids=" ".join)
def test_ranks_share_the_probes(single: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    train(tmp_path, *SMALL, "hw=cpu2", *more)
    run = run_folder(tmp_path)
    found, wanted = rows(run), rows(single)
    assert [row["step"] for row in found] == [row["step"] for row in wanted] == [0, 2, 4]
    for name in MEASURES:
        assert found[0][f"probe/{name}"] == pytest.approx(wanted[0][f"probe/{name}"], rel=1e-4), name
    if "adapter=lora" not in more:  # trained alike
        assert found[-1]["probe/kl"] == pytest.approx(wanted[-1]["probe/kl"], rel=1e-2)
    answers = [json.loads(line) for line in (run / "probes" / "answers.jsonl").read_text().splitlines()]
    assert [row["id"] for row in answers if row["step"] == 2] == [row["id"] for row in answers if row["step"] == 0][:5]
    assert json.loads((run / "behaviour.json").read_text())["verdict"] == "not judged"
