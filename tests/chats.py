"""Conversations, tokenizers with the templates of tests/templates or of TRL, and what they train of the former."""

import importlib.metadata
import re
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from sft_exp.conversation import Conversation
from sft_exp.labels import IGNORED, Encoded, encode
from sft_exp.normalize import normalize
from sft_exp.schema import Loss
from sft_exp.tokenizer import SHIPPED

TEMPLATES = Path(__file__).parent / "templates"
TOKENS = {
    "chatml": {"eos_token": "<|endoftext|>"},  # like Qwen2.5 base: the template's end is not the tokenizer's
    "inst": {"bos_token": "<s>", "eos_token": "</s>"},
    "strips_reasoning": {"bos_token": "<s>", "eos_token": "</s>"},
    "thinks_first": {"bos_token": "<s>", "eos_token": "</s>"},
}
TRL_TEMPLATES = Path(str(importlib.metadata.distribution("trl").locate_file("trl"))) / "chat_templates"
PUBLISHED = {
    "qwen2_5": {"eos_token": "<|im_end|>"},
    "qwen3": {"eos_token": "<|im_end|>"},
    "llama3": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "deepseek_r1_distill": {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
}


def make(template: str | None, *, trim_offsets: bool = False, **tokens: str) -> PreTrainedTokenizerFast:
    backend = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    backend.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **(tokens or TOKENS.get(template or "", {})))
    tokenizer.pad_token = tokenizer.eos_token
    if template:
        tokenizer.chat_template = (TEMPLATES / f"{template}.jinja").read_text()
    return tokenizer


def published(name: str) -> PreTrainedTokenizerFast:
    """The shipped tokenizer with a published chat template, as TRL keeps it, and the control tokens that it writes."""
    tokenizer = make(None, trim_offsets=False, **PUBLISHED[name.removesuffix("_training")])
    tokenizer.chat_template = (TRL_TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    marks = sorted(set(re.findall(r"<[|｜][^<>|｜\s]+[|｜]>", tokenizer.chat_template)))
    tokenizer.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks], special_tokens=True)
    return tokenizer


def row(value: dict[str, Any]) -> Conversation:
    return normalize(value, role_map={}, columns={})


TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "天气", "parameters": {"type": "object", "properties": {}}},
}


def tool_chat() -> Conversation:
    """A question, a tool call, the tool's output and an answer."""
    call = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Zürich"}'}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "content": '{"t": 3, "雨": true}'},
        {"role": "assistant", "content": "三度 🌧"},
    ]
    return row({"messages": messages, "tools": [TOOL]})


def chat(*turns: str, system: str = "") -> Conversation:
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(turns)]
    return row({"messages": messages, "system": system})


def enc(
    conversation: Conversation,
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_length: int = 4096,
    loss: Loss = Loss.assistant,
) -> Encoded:
    return encode(conversation, tokenizer, max_length=max_length, loss=loss)


def spans(encoded: Encoded, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Runs of trained tokens as text."""
    runs: list[list[int]] = [[]]
    for token, label in zip(encoded.input_ids, encoded.labels, strict=True):
        if label == IGNORED:
            runs.append([])
        else:
            assert label == token
            runs[-1].append(token)
    return [tokenizer.decode(run) for run in runs if run]
