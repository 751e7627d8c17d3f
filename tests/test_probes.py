"""Probes in real runs: what they leave behind, and that they leave training alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sft_exp import rundir
from sft_exp.probes import table
from sft_exp.probes.answers import Speaker
from sft_exp.probes.heldout import split
from sft_exp.probes.quiet import quiet
from sft_exp.rundir import RunDir
from training import logged, train

SMALL = (
    "eval.count=4",
    "eval.tokens=8",
    "eval.answers=50",
    "dataset.eval_fraction=0.2",
    "eval.budget=1e9",
    "eval.probes=true",
)
NOISY = ("adapter=lora", "adapter.dropout=0.3", "train.max_steps=6", "train.eval_steps=2")
"""Dropout: each step draws random numbers."""


def metrics(run: RunDir, key: str) -> dict[int, float]:
    rows = map(json.loads, run.metrics.read_text().splitlines())
    return {row["step"]: row[key] for row in rows if key in row}


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return train(tmp_path_factory.mktemp("probed"), *NOISY, *SMALL, "dataset.test_fraction=0.2")


def test_training_is_bit_identical_with_probes_on_and_off(probed: RunDir, tmp_path: Path) -> None:
    off = train(tmp_path, *NOISY, *SMALL, "dataset.test_fraction=0.2", "eval.probes=false")
    for key in ("train/loss", "train/grad_norm", "eval/loss", "eval/p_eos", "test/loss"):
        assert logged(probed, key) == logged(off, key) != []
    assert not off.behaviour.exists() and not off.probes.exists()
    assert len(metrics(probed, "probe/ended")) == 4


def test_what_a_run_leaves_behind(probed: RunDir) -> None:
    record = rundir.read_json(probed.behaviour)
    assert record.keys() == {"verdict", "headline", "reasons", "metrics", "base", "scores"}
    assert record["verdict"] == "not judged" == record["headline"].partition(" (")[0]  # random weights
    assert rundir.read_json(probed.result)["behaviour"] == record["headline"]
    assert list(metrics(probed, "probe/kl")) == [2, 4, 6] and list(metrics(probed, "probe/perplexity")) == [0, 2, 4, 6]
    assert record["metrics"]["probe/kl"] == metrics(probed, "probe/kl")[6] > 0
    assert record["base"]["probe/perplexity"] == metrics(probed, "probe/perplexity")[0]
    for name in ("eval/exact_match", "eval/rouge_l", "eval/chrf", "test/chrf"):
        assert metrics(probed, name) == {0: record["scores"]["base"][name], 6: record["scores"]["trained"][name]}
    assert 0 < metrics(probed, "probe/share_of_run")[6] < 1 and metrics(probed, "probe/seconds")[2] > 0


def test_teacher_forced_ends_agree_with_the_evaluation(probed: RunDir) -> None:
    """The probes' own pass over held-out rows and the trainer's over all of them: here the rows are the same."""
    probe, trainer = metrics(probed, "probe/p_eos"), metrics(probed, "eval/p_eos")
    assert probe[2] == pytest.approx(trainer[2], rel=1e-4) and probe[6] != probe[0]


def test_answers_are_a_table_over_steps(probed: RunDir) -> None:
    rows = table.read(probed)
    assert all(tuple(row) == table.COLUMNS for row in rows)
    assert [row["step"] for row in rows if row["set"] == "probe"] == [step for step in (0, 2, 4, 6) for _ in range(4)]
    evals = [row for row in rows if row["set"] == "eval"]
    assert {row["step"] for row in evals} == {0, 6} and all(row["reference"].startswith("It is") for row in evals)
    assert all("user" in row["prompt"] and "assistant" in row["prompt"] for row in evals)
    table.forget_after(probed, 2)
    assert {row["step"] for row in table.read(probed)} == {0, 2}


@pytest.mark.parametrize("adapter", ["full", pytest.param("lora", marks=pytest.mark.slow)])
def test_stored_and_switched_off_bases_agree_on_a_base_that_has_not_moved(tmp_path: Path, adapter: str) -> None:
    run = train(tmp_path, *SMALL, f"adapter={adapter}", "train.max_steps=1", "train.learning_rate=1e-30")
    assert metrics(run, "probe/kl")[1] == pytest.approx(0, abs=1e-6)
    assert metrics(run, "probe/perplexity_ratio")[1] == pytest.approx(1, rel=1e-6)
    assert (run.probes / "base").exists() is (adapter == "full")


@pytest.mark.slow
def test_a_dear_probe_is_left_out(tmp_path: Path) -> None:
    run = train(tmp_path, *NOISY, *SMALL, "eval.budget=0")
    assert list(metrics(run, "probe/ended")) == [0, 6]


@pytest.mark.slow
def test_every_second_evaluation(tmp_path: Path) -> None:
    run = train(tmp_path, *NOISY, *SMALL, "eval.every=2")
    assert list(metrics(run, "probe/ended")) == [0, 4, 6]


def test_a_degenerate_run_is_stopped(tmp_path: Path) -> None:
    run = train(tmp_path, *NOISY, *SMALL, "train.learning_rate=1e-3", "eval.limits.kl=0", "eval.stop_degenerate=true")
    result = rundir.read_json(run.result)
    assert (result["steps"], result["stopped_early"]) == (2, True)
    assert any(reason.startswith("forgot (") for reason in rundir.read_json(run.behaviour)["reasons"])


def test_untrained_tokens_and_ends_are_named(tmp_path: Path) -> None:
    tokens = ("model.special_tokens=[<chunk>,</chunk>]", "adapter=lora", "train.max_steps=2", *SMALL)
    trained = train(tmp_path, *tokens, answer="<chunk>It is %d. </chunk>")
    assert not any("untrained" in reason for reason in rundir.read_json(trained.behaviour)["reasons"])
    switches = ("model.train_special_tokens=false", "dataset.train_end=false")
    left = train(tmp_path, *tokens, *switches, answer="<chunk>It is %d. </chunk>")
    reasons = rundir.read_json(left.behaviour)["reasons"]
    assert any(reason.startswith("added tokens untrained (") for reason in reasons)
    assert any(reason.startswith("end token not trained (") for reason in reasons)


class Mode(torch.nn.Module):  # type: ignore[misc]
    """Two modules, one of which is frozen in evaluation mode, as a user may leave it."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.free = torch.nn.Dropout(), torch.nn.Dropout()
        self.frozen.eval()


def test_attention_that_is_compiled_is_put_aside() -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from sft_exp.meter import Meter

    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=32, num_key_value_heads=2, attn_implementation="flex_attention", **shape)
    )
    with quiet(model, Meter(torch.device("cpu"), 0)):
        assert model.config._attn_implementation == "sdpa"
        assert model(input_ids=torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 32)
    assert model.config._attn_implementation == "flex_attention"


def test_modes_and_random_states_are_as_before(probed: RunDir) -> None:
    import random

    import numpy as np

    from sft_exp.meter import Meter

    def draws() -> list[Any]:
        return [float(torch.rand(())), random.random(), float(np.random.rand())]

    model, meter = Mode(), Meter(torch.device("cpu"), 0)
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    wanted = draws()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    with quiet(model, meter):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        draws()
    assert draws() == wanted
    assert [module.training for module in (model, model.frozen, model.free)] == [True, False, True]


@pytest.mark.parametrize(
    ("ids", "labels", "expected"),
    [
        ([1, 2, 5, 6, 9], [-100, -100, 5, 6, 9], ([1, 2], [5, 6], 9, True)),
        ([1, 2, 5, 6, 9, 3], [-100, -100, 5, 6, -100, -100], ([1, 2], [5, 6], 9, False)),  # the end is masked
        ([1, 2, 5, 6], [-100, -100, 5, 6], ([1, 2], [5, 6], None, False)),  # cut off
        ([1, 5, 9, 2, 6, 9], [-100, 5, 9, -100, 6, 9], ([1, 5, 9, 2], [6], 9, True)),  # the last of two turns
        ([5, 6, 9], [5, 6, 9], None),
        ([5, 6, 9], [-100] * 3, None),
    ],
)
def test_rows_are_cut_at_their_last_answer(ids: list[int], labels: list[int], expected: Any) -> None:
    row = split(ids, labels, 9)
    assert (row and (row.prompt, row.reference, row.end, row.end_trained)) == expected


def test_greedy_answers_do_not_depend_on_the_batch_or_the_checkpoints_settings(probed: RunDir) -> None:
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    from preparing import shipped

    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(shipped()), num_key_value_heads=2, **shape)).eval()
    own = GenerationConfig(eos_token_id=[7, 8], do_sample=True, temperature=0.7, repetition_penalty=1.3)
    model.generation_config = own
    prompts = [[40, 41, 42], [50], [60, 61, 62, 63, 64, 65]]
    with torch.no_grad():
        together = Speaker(model, shipped(), tokens=12, batch=3, together=False).answer(prompts)
        alone = Speaker(model, shipped(), tokens=12, batch=1, together=False).answer(prompts)
        logits = model(input_ids=torch.tensor([prompts[0]])).logits[0, -1]
    assert together == alone
    assert together[0].ids[:1] == [int(logits.argmax())]
    assert model.generation_config is own
