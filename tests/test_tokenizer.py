"""Tokens, templates and what loading costs."""

import datetime
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chats import TRL_TEMPLATES, make, published
from sft_exp.errors import ConfigError
from sft_exp.schema import Model, Weights
from sft_exp.tokenizer import SHIPPED, identity, load_tokenizer, new_tokens

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 1 + 1?"},
    {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}]},
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": " two \n"},
]


def shipped(**fields: Any) -> Model:
    return Model(weights=Weights.random, **fields)


def render(tokenizer: Any, messages: list[dict[str, Any]], generate: bool = False) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate))


@pytest.mark.parametrize(
    "text", ["The capital of France is Paris.", "你好，世界", "żółw 🦙\u200b\x00\t \n\n  é", "\U0010ffff"]
)
def test_shipped_tokenizer_returns_any_text(text: str) -> None:
    tokenizer = load_tokenizer(shipped())
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_shipped_tokenizer_ids() -> None:
    tokenizer = load_tokenizer(shipped())
    special = [tokenizer.convert_tokens_to_ids(token) for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    assert special == [2048, 2049, 2050]
    assert (len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id) == (2051, 2048, 2050)
    assert tokenizer("<|im_end|>").input_ids == [2050]
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 200_000


def test_shipped_template_text() -> None:
    assert render(load_tokenizer(shipped()), CHAT, generate=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 1 + 1?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n two \n<|im_end|>\n<|im_start|>assistant\n"
    )


def test_shipped_template_keeps_prefixes_and_refuses_unknown_roles() -> None:
    tokenizer = load_tokenizer(shipped())
    whole = tokenizer(render(tokenizer, CHAT)).input_ids
    for end in range(1, len(CHAT)):
        part = tokenizer(render(tokenizer, CHAT[:end])).input_ids
        assert whole[: len(part)] == part
        if CHAT[end]["role"] == "assistant":
            prompt = tokenizer(render(tokenizer, CHAT[:end], generate=True)).input_ids
            assert whole[: len(prompt)] == prompt
    with pytest.raises(Exception, match="role bot is not one of"):
        render(tokenizer, [{"role": "bot", "content": "x"}])


def test_added_tokens_stay_visible_and_leave_special_tokens_alone() -> None:
    plain = load_tokenizer(shipped())
    model = shipped(special_tokens=["<chunk>", "</chunk>", "<|im_end|>", "<chunk>"])
    tokenizer = load_tokenizer(model)
    assert new_tokens(model) == ["<chunk>", "</chunk>"]
    assert tokenizer("<chunk>hi</chunk>").input_ids[0] == 2051
    assert tokenizer.convert_tokens_to_ids("</chunk>") == 2052
    ids = tokenizer("<chunk>hi</chunk><|im_end|>").input_ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<chunk>hi</chunk>"
    assert tokenizer.all_special_tokens == plain.all_special_tokens


def test_saved_tokens_are_not_new_again(tmp_path: Path) -> None:
    load_tokenizer(shipped(special_tokens=["<chunk>"])).save_pretrained(tmp_path)
    model = Model(path=str(tmp_path), special_tokens=["<chunk>", "<other>"])
    assert new_tokens(model) == ["<other>"]
    assert load_tokenizer(model).convert_tokens_to_ids(["<chunk>", "<other>"]) == [2051, 2052]


def test_chat_template_file(tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}", encoding="utf-8")
    tokenizer = load_tokenizer(shipped(chat_template=str(template)))
    assert render(tokenizer, [{"role": "user", "content": "你"}]) == "[你]"
    with pytest.raises(ConfigError, match=r"model.chat_template=/nowhere.jinja is not a file"):
        load_tokenizer(shipped(chat_template="/nowhere.jinja"))


def test_missing_pad_token_becomes_the_end_token(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(shipped())
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(Model(path=str(tmp_path))).pad_token == "<|im_end|>"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"path": "/nowhere/model"}, "model.path=/nowhere/model is not a folder"),
        ({"path": "a/b", "tokenizer": "./nowhere"}, "model.tokenizer=./nowhere is not a folder"),
        ({"path": "no-such-owner/no-such-model"}, "no-such-owner/no-such-model cannot be fetched from the hub"),
        ({}, "model.path is not set"),
    ],
)
def test_tokenizer_that_is_not_there(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], sentence: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=sentence) as caught:
        load_tokenizer(Model(**fields))
    assert "\n" not in str(caught.value)
    if "hub" in sentence:
        assert all(word in str(caught.value) for word in ("HF_ENDPOINT", "HF_HUB_OFFLINE", "model.path=/folder"))


def test_training_template_prepares_and_is_not_saved(tmp_path: Path) -> None:
    published("deepseek_r1_distill").save_pretrained(tmp_path)
    model = Model(path=str(tmp_path), chat_template="training")
    stock, training = (
        (TRL_TEMPLATES / f"deepseek_r1_distill{kind}.jinja").read_text(encoding="utf-8") for kind in ("", "_training")
    )
    assert load_tokenizer(model).chat_template == stock
    assert load_tokenizer(model, preparing=True).chat_template == training
    assert load_tokenizer(shipped(chat_template="training"), preparing=True).chat_template
    published("deepseek_r1_distill_training").save_pretrained(tmp_path)  # fit for training already
    assert load_tokenizer(model, preparing=True).chat_template == training


def test_no_training_template_is_a_sentence(tmp_path: Path) -> None:
    model = Model(path=str(tmp_path), chat_template="training")
    for tokenizer, words in ((make("chatml"), "the tokenizer's chat template"), (make(None), "chat template: set")):
        tokenizer.save_pretrained(tmp_path)
        with pytest.raises(ConfigError, match=rf"{words}.*model\.chat_template=FILE\.jinja") as caught:
            load_tokenizer(model, preparing=True)
        assert "\n" not in str(caught.value)
        (tmp_path / "chat_template.jinja").unlink(missing_ok=True)


def test_vocabulary_and_merges_are_converted(tmp_path: Path) -> None:
    backend = json.loads((SHIPPED / "tokenizer.json").read_text(encoding="utf-8"))
    (tmp_path / "vocab.json").write_text(json.dumps(backend["model"]["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in backend["model"]["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    settings = json.loads((SHIPPED / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings |= {"tokenizer_class": "Qwen2Tokenizer"}
    settings["added_tokens_decoder"] = {token.pop("id"): token for token in backend["added_tokens"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    text = "Hi 你好 🌊<|im_end|>\n"
    converted = load_tokenizer(Model(path=str(tmp_path)))
    assert converted.is_fast and converted(text).input_ids == load_tokenizer(shipped())(text).input_ids


@pytest.mark.skipif(importlib.util.find_spec("sentencepiece") is not None, reason="sentencepiece is installed")
def test_sentencepiece_file_names_the_package(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigError, match="pip install sentencepiece"):
        load_tokenizer(Model(path=str(tmp_path)))


def test_folder_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="check that the folder is complete"):
        load_tokenizer(Model(path=str(tmp_path)))


def test_loading_leaves_torch_out() -> None:
    code = (
        "import sys; from sft_exp.tokenizer import load_tokenizer; from sft_exp.schema import Model, Weights;"
        "assert 'transformers' not in sys.modules; load_tokenizer(Model(weights=Weights.random));"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_template_that_writes_the_date_is_another_one_each_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Day(datetime.date):
        now = 1

        @classmethod
        def today(cls) -> "Day":
            return cls(2026, 1, cls.now)

    monkeypatch.setattr("datetime.date", Day)
    dated, plain = tmp_path / "dated.jinja", tmp_path / "plain.jinja"
    dated.write_text("{{ strftime_now('%d %b %Y') }}{{ messages[0].content }}")
    plain.write_text("{{ messages[0].content }}")
    before = [identity(shipped(chat_template=str(file))) for file in (dated, plain)]
    Day.now = 2
    after = [identity(shipped(chat_template=str(file))) for file in (dated, plain)]
    assert before[0] != after[0] and before[1] == after[1]


@pytest.mark.parametrize(("content", "word"), [(b"\xe9 {{ messages }}", "UTF-8"), (b" \n", "is empty")])
def test_template_file_that_cannot_be_used(tmp_path: Path, content: bytes, word: str) -> None:
    (tmp_path / "t.jinja").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"model\.chat_template=.*t\.jinja .*{word}"):
        identity(shipped(chat_template=str(tmp_path / "t.jinja")))
