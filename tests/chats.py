"""Conversations, tokenizers with the templates of tests/templates, and what is trained of the former by the latter."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors
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


def make(template: str | None, *, trim_offsets: bool = False, **tokens: str) -> PreTrainedTokenizerFast:
    backend = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    backend.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **(tokens or TOKENS.get(template or "", {})))
    tokenizer.pad_token = tokenizer.eos_token
    if template:
        tokenizer.chat_template = (TEMPLATES / f"{template}.jinja").read_text()
    return tokenizer


def row(value: dict[str, Any]) -> Conversation:
    return normalize(value, role_map={}, columns={})


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
