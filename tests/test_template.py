"""What a chat template puts around a turn, and templates that fail."""

import pytest

from chats import TEMPLATES, chat, enc, make, row, spans
from sft_exp.errors import ConfigError
from sft_exp.labels import chat_end_token


def test_end_token() -> None:
    tokenizer = make("chatml")
    assert chat_end_token(tokenizer) == tokenizer.convert_tokens_to_ids("<|im_end|>") != tokenizer.eos_token_id
    assert chat_end_token(make("inst")) == make("inst").eos_token_id
    assert chat_end_token(make(None, eos_token="<|endoftext|>")) is None
    for end in ("", "###"):  # nothing, and a mark that is no single token
        tokenizer.chat_template = (TEMPLATES / "chatml.jinja").read_text().replace("<|im_end|>", end)
        assert chat_end_token(tokenizer) is None
        encoded = enc(chat("a", "b"), tokenizer)
        assert not encoded.end_trained and spans(encoded, tokenizer) == [f"b{end}"]


def test_template_that_joins_arguments_as_text() -> None:
    tokenizer = make("chatml")
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "call.function.arguments | tojson", "'' + call.function.arguments"
    )
    call = {"function": {"name": "f", "arguments": {"数": 1}}}
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}]
    encoded = enc(row({"messages": messages}), tokenizer)
    assert '"arguments": {"数": 1}' in spans(encoded, tokenizer)[0]


def test_broken_template_is_a_sentence() -> None:
    tokenizer = make("chatml")
    tokenizer.chat_template = "{{ messages[5].content.upper() }}"
    with pytest.raises(ConfigError, match="chat template fails"):
        enc(chat("a", "b"), tokenizer)
