"""Perplexity and divergence against an independent computation in float64, with and without an adapter."""

import copy
import math
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from sft_exp.probes import forgetting
from sft_exp.probes.forgetting import GeneralTexts, divergence

TEXTS = [[3, 17, 5, 90, 41, 7, 7, 12], [11, 2], [60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70]]
VOCABULARY = 96


def tiny() -> Qwen2ForCausalLM:
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCABULARY, num_key_value_heads=2, **shape)).eval()


def disturb(model: Any) -> None:
    torch.manual_seed(4)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.05 * torch.randn_like(parameter)


def by_hand(model: Any) -> list[list[list[float]]]:
    """Log-probabilities of each text in float64, by math.log and math.exp alone behind the logits."""
    double, found = copy.deepcopy(model).double(), []
    for text in TEXTS:
        logits = double(input_ids=torch.tensor([text])).logits[0, :-1].tolist()
        totals = [math.log(math.fsum(math.exp(value) for value in row)) for row in logits]
        found.append([[value - total for value in row] for row, total in zip(logits, totals, strict=True)])
    return found


def expected(base: Any, model: Any) -> tuple[float, float, float]:
    """Perplexity of base and model, and KL(base || model), over all predicted tokens."""
    theirs, ours = by_hand(base), by_hand(model)
    tokens = sum(len(text) - 1 for text in TEXTS)

    def perplexity(log_probs: list[list[list[float]]]) -> float:
        picked = [
            row[token]
            for rows, text in zip(log_probs, TEXTS, strict=True)
            for row, token in zip(rows, text[1:], strict=True)
        ]
        return math.exp(-math.fsum(picked) / tokens)

    kl = math.fsum(
        math.exp(p) * (p - q)
        for rows_p, rows_q in zip(theirs, ours, strict=True)
        for row_p, row_q in zip(rows_p, rows_q, strict=True)
        for p, q in zip(row_p, row_q, strict=True)
    )
    return perplexity(theirs), perplexity(ours), kl / tokens


@pytest.mark.parametrize("together", [False, True])
@torch.no_grad()  # type: ignore[untyped-decorator]
def test_full_fine_tuning_compares_with_stored_log_probabilities(tmp_path: Path, together: bool) -> None:
    model = tiny()
    base = copy.deepcopy(model)
    texts = GeneralTexts(TEXTS, VOCABULARY, tmp_path, None, together)
    start = texts.start(model)
    disturb(model)
    end = texts.compare(model)
    base_ppl, ppl, kl = expected(base, model)
    assert start.kl is None and start.perplexity == pytest.approx(base_ppl, rel=1e-6)
    assert end.perplexity == pytest.approx(ppl, rel=1e-6)
    assert kl > 0.01 and end.kl == pytest.approx(kl, abs=1e-6)


@torch.no_grad()  # type: ignore[untyped-decorator]
def test_an_adapter_is_switched_off_instead(tmp_path: Path) -> None:
    base = tiny()
    model = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])).eval()
    texts = GeneralTexts(TEXTS, VOCABULARY, tmp_path / "none", model.disable_adapter, False)
    texts.start(model)
    disturb(model)
    end = texts.compare(model)
    merged = copy.deepcopy(model).merge_and_unload()
    _, ppl, kl = expected(base, merged)
    assert end.perplexity == pytest.approx(ppl, rel=1e-6)
    assert kl > 1e-4 and end.kl == pytest.approx(kl, abs=1e-6)
    assert not (tmp_path / "none").exists()


def test_an_equal_model_has_no_divergence(tmp_path: Path) -> None:
    model = tiny()
    texts = GeneralTexts(TEXTS, VOCABULARY, tmp_path, None, False)
    with torch.no_grad():
        texts.start(model)
        same = texts.compare(model)
    assert same.kl == pytest.approx(0, abs=1e-6) and same.agreement == 1.0


def test_divergence_of_two_coins() -> None:
    fair, bent = torch.tensor([0.5, 0.5]).double().log(), torch.tensor([0.9, 0.1]).double().log()
    assert float(divergence(fair, bent)) == pytest.approx(0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1))


@pytest.mark.parametrize("limit", [1, 7, 11, 18, 500])
def test_stored_positions_are_bounded_and_spread(limit: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(forgetting, "STORED", limit * 4 * VOCABULARY)
    texts = GeneralTexts(TEXTS, VOCABULARY, tmp_path, None, False)
    places = [texts.positions(at).tolist() for at in range(len(TEXTS))]
    count, all_places = sum(map(len, places)), sum(len(text) - 1 for text in TEXTS)
    assert count <= max(limit, len(TEXTS)) and count <= all_places
    assert count >= min(all_places, max(limit, len(TEXTS))) * 0.6
    assert all(0 <= place < len(text) - 1 for found, text in zip(places, TEXTS, strict=True) for place in found)
    assert limit < all_places or places == [list(range(len(text) - 1)) for text in TEXTS]
