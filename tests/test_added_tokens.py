"""Added tokens before the first step: cut in pieces, not in the data, described, left untrained; base models."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from chats import make
from composing import NO_CARDS, assembled
from preparing import accepted
from sft_exp import added_tokens, check, data_report, prepare
from sft_exp.errors import ConfigError
from sft_exp.model import add_token_rows
from sft_exp.prepared import Prepared
from sft_exp.request import to_plain
from sft_exp.schema import Dataset, Experiment
from sft_exp.tokenizer import load_tokenizer, new_tokens
from test_model import build, tiny

TINY = ("model=tiny", "hw=cpu", "tracking=none")
BOTH = 'model.special_tokens=["<chunk>","</chunk>"]'


def experiment(folder: Path, rows: list[tuple[str, str]], *overrides: str) -> Experiment:
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": asked, "completion": said}) + "\n" for asked, said in rows))
    return assembled(*TINY, "dataset=jsonl", f"dataset.path={data}", "dataset.eval_fraction=0", *overrides)


def report(folder: Path, rows: list[tuple[str, str]], *overrides: str) -> tuple[Prepared, list[str]]:
    return prepare.report(experiment(folder, rows, *overrides))


def test_tokens_are_counted_where_they_are_trained(tmp_path: Path) -> None:
    rows = [("<chunk> a", "<chunk>b</chunk> c</chunk>"), ("d", "</chunk>")]
    found, problems = report(tmp_path, rows, BOTH)
    assert problems == []
    assert found.added_tokens == {"<chunk>": {"there": 2, "trained": 1}, "</chunk>": {"there": 3, "trained": 3}}
    assert "<chunk> 2 times in the training rows, 1 trained" in data_report.text(to_plain(found), colour=False)
    found, problems = report(tmp_path, [("<chunk> a</chunk>", "b")], BOTH)
    assert problems == [] and found.added_tokens["<chunk>"] == {"there": 1, "trained": 0}
    assert "not to write it" in data_report.text(to_plain(found), colour=False)


def test_a_token_that_is_nowhere_is_refused(tmp_path: Path) -> None:
    _, problems = report(tmp_path, [("a", "<chunk>b")], BOTH)
    assert problems == [
        "model.special_tokens: </chunk> is in no training row of rows.jsonl, so the model cannot learn it: write it "
        "into the data, or take it from the list."
    ]
    assert list(added_tokens.problems(Prepared(fingerprint="", folder="", source="", max_length=1))) == []


@pytest.mark.parametrize("token", ["the", "<|im_end", "a"])
def test_a_token_that_is_cut_in_pieces_is_refused(token: str) -> None:
    if token == "<|im_end":  # found inside a longer one, but whole by itself
        assert load_tokenizer(tiny(special_tokens=[token])).convert_tokens_to_ids(token) == 2051
        return
    with pytest.raises(ConfigError, match=f"the tokenizer cuts '{token}' in pieces"):
        load_tokenizer(tiny(special_tokens=[token]))


def test_capital_letters_are_found_by_a_tokenizer_of_small_ones(tmp_path: Path) -> None:
    from tokenizers import normalizers

    tokenizer = make("chatml")
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.save_pretrained(tmp_path)
    from sft_exp.schema import Model

    loaded = load_tokenizer(Model(path=str(tmp_path), special_tokens=["<CHUNK>"]))
    assert loaded.encode("A<CHUNK>").count(loaded.convert_tokens_to_ids("<CHUNK>")) == 1


@pytest.mark.parametrize("tied", [True, False])
def test_a_description_gives_the_first_row(tied: bool) -> None:
    model = tiny(tied=tied, special_tokens=["<chunk>", "</chunk>"])
    network, plain, tokenizer = build(model), build(model), load_tokenizer(model)
    text = "beginning of a part"
    add_token_rows(network, tokenizer, new_tokens(model), {"<chunk>": text})
    pieces = plain.get_output_embeddings().weight[load_tokenizer(tiny())(text).input_ids]
    row = network.get_output_embeddings().weight[2051]
    assert float((row - pieces.mean(dim=0)).detach().std() / pieces.detach().std()) == pytest.approx(0.1, abs=0.03)
    add_token_rows(plain, tokenizer, new_tokens(model))
    assert not torch.equal(row, plain.get_output_embeddings().weight[2051])
    assert torch.equal(network.lm_head.weight[2052], plain.lm_head.weight[2052])


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["model.token_descriptions={x: y}"], "describes x, which is not in model.special_tokens"),
        ([BOTH, "model.token_descriptions={<chunk>: ' '}"], "model.token_descriptions.<chunk> is empty"),
        (["adapter=lora", "model.train_special_tokens=false"], "has no effect without model.special_tokens"),
        ([BOTH, "model.train_special_tokens=false"], "not possible with adapter=full"),
    ],
)
def test_rules(overrides: list[str], sentence: str) -> None:
    found = check.check(assembled(*TINY, *overrides), NO_CARDS, plan=True)
    assert any(sentence in problem for problem in found.problems), found.problems


def test_rows_left_alone_on_purpose_are_a_note() -> None:
    found = check.check(assembled(*TINY, BOTH, "adapter=lora", "model.train_special_tokens=false"), NO_CARDS, plan=True)
    assert any("can hardly learn to write" in note for note in found.warnings), found


CHATML = ["<|im_start|>", "<|im_end|>"]


@pytest.mark.parametrize(
    ("template", "overrides", "names"),
    [
        ("chatml", ["adapter=lora"], '["<|im_start|>","<|im_end|>"]'),
        ("chatml", ["adapter=lora", 'model.special_tokens=["<|im_end|>"]'], '["<|im_end|>","<|im_start|>"]'),
        ("chatml", ["adapter=lora", 'model.special_tokens=["<|im_start|>","<|im_end|>"]'], ""),
        ("chatml", ["adapter=full"], ""),
        ("shipped", ["adapter=lora"], ""),
    ],
)
def test_a_base_model_under_an_adapter_is_named(
    tmp_path: Path, template: str, overrides: list[str], names: str
) -> None:
    tokenizer: Any = make("chatml") if template == "chatml" else load_tokenizer(tiny())
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    found = accepted(Dataset(path=str(tmp_path / "rows.jsonl"), eval_fraction=0), tmp_path / "cache", tokenizer)
    assert set(found.control_tokens) >= set(CHATML)
    hint = added_tokens.base_model(found, assembled(*TINY, *overrides))
    assert hint.endswith(f"'model.special_tokens={names}'") if names else hint == ""
