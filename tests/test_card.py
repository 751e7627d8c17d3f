"""The model card: what it says, what the hub can read of it, and what it keeps for itself."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from composing import NO_CARDS, compose
from preparing import go, pairs, write
from sft_exp import card, record, rundir
from sft_exp.resolve import resolve
from sft_exp.rundir import RunDir

RESULT = {
    "steps": 4, "total_steps": 5, "loss_first": 3.25, "loss_last": "nan", "eval_loss": 2.5, "test_loss": None,
    "eval_loss_best": 2.25, "tokens_per_second": 1234.5, "tokens_seen": 56789, "mfu": None, "peak_memory_gib": 1.5,
    "peak_memory_of": "process", "parameters": 631936, "trainable_parameters": 65536,
}  # fmt: skip


def finished(tmp_path: Path, *overrides: str) -> RunDir:
    """A run folder with the records of a finished run."""
    asked = compose("model=tiny", "hw=cpu", f"outputs={tmp_path}/outputs", *overrides)
    asked.experiment = resolve(asked.experiment, NO_CARDS)
    run = rundir.create(asked)
    run.model.mkdir()
    (run.model / "README.md").write_text("PEFT's own")
    data = write(tmp_path / "rows.jsonl", [*pairs(6), ("no answer", "")])
    rundir.write_json(run.data, go(data, tmp_path / "cache", eval_fraction=0.0, max_bad_fraction=1.0))
    rundir.write_json(run.record, record.collect(NO_CARDS, [], [])[0])
    rundir.write_json(run.result, RESULT)
    return run


def read(run: RunDir) -> ModelCard:
    card.leave(run)
    loaded: ModelCard = ModelCard.load(run.model / "README.md")
    return loaded


def test_front_matter_of_models_from_the_hub(tmp_path: Path) -> None:
    run = finished(tmp_path, "model=qwen0.5b", "adapter=lora", "dataset=hub", "dataset.path=org/rows")
    data: Any = read(run).data
    written = data.to_dict()
    assert written.pop("language", None) in (["en"], None)
    assert written == {
        "base_model": "Qwen/Qwen2.5-0.5B", "base_model_relation": "adapter", "datasets": ["org/rows"],
        "library_name": "peft", "pipeline_tag": "text-generation", "tags": ["sft_exp", "sft", "trl", "lora"],
    }  # fmt: skip
    merged = ModelCard(card.text(run, merged="relative difference 0.001"))
    data = merged.data
    assert (data.base_model_relation, data.library_name) == ("finetune", "transformers")
    assert "Merged into its base; logits against the trained model: relative difference 0.001." in merged.text


def test_paths_of_the_machine_stay_private(tmp_path: Path) -> None:
    text = str(read(finished(tmp_path, f"dataset.path=[{tmp_path}/a.jsonl,{tmp_path}/b.jsonl]", "dataset.name=null")))
    assert str(tmp_path) not in text
    assert "base_model:" not in text
    assert "| Name | a.jsonl, b.jsonl |" in text


def test_what_it_says(tmp_path: Path) -> None:
    run = finished(tmp_path, "adapter=qlora", 'model.special_tokens=["<|a|>"]', "train.learning_rate=3e-4")
    text = read(run).text
    for line in (
        "| Rows read / kept / dropped | 7 / 6 / 1 (empty_content 1) |",
        f"| Fingerprint | `{rundir.read_json(run.data)['fingerprint']}` |",
        "| Training loss, first / last | 3.25 / nan |",
        "| Best evaluation loss | 2.25 |",
        "| Tokens per second | 1,234 |",
        "| Peak memory of the process | 1.50 GiB |",
        "| train.learning_rate | `0.0003` |",
        "| train.scheduler | `linear` |",
        "| adapter.quant_type | `nf4` |",
        "| model.special_tokens | `<\\|a\\|>` |",
        "Its answers were not judged in this run.",
        "`python -m sft_exp chat RUN` draws it again",
    ):
        assert line in text, text
    assert rundir.read_json(run.record)["versions"]["torch"] in text
    assert "PEFT's own" not in text


def test_behaviour(tmp_path: Path) -> None:
    run = finished(tmp_path)
    found: dict[str, Any] = {
        "verdict": "degenerate: never stops", "reasons": ["3 % of answers end"],
        "metrics": {"ended": 0.03, "distinct_2": 0.8}, "base": {"ended": 0.96},
    }  # fmt: skip
    rundir.write_json(run.behaviour, found)
    text = read(run).text
    assert "Verdict: **degenerate: never stops**\n\n- 3 % of answers end" in text
    assert "| ended | 0.03 | 0.96 |\n| distinct_2 | 0.8 | - |" in text


def test_a_disk_that_is_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = finished(tmp_path)
    (run.model / "README.md").unlink()
    (run.model / "README.md").mkdir()  # a rename onto it fails as a write would
    card.leave(run)
    assert "note: no model card could be written into" in capsys.readouterr().out
