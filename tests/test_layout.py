"""Layouts: the borders of turns, and what templates drop, refuse or add."""

import pytest
from tokenizers import processors

from chats import chat, enc, make, row, spans
from sft_exp.conversation import BadRow
from sft_exp.errors import ConfigError


def test_conversation_begun_by_the_assistant() -> None:
    messages = [{"role": r, "content": c} for r, c in [("assistant", "Hello!"), ("user", "Hi"), ("assistant", "So?")]]
    tokenizer = make("chatml")
    assert spans(enc(row({"messages": messages}), tokenizer), tokenizer) == ["Hello!<|im_end|>", "So?<|im_end|>"]


def test_reasoning_is_kept_or_refused() -> None:
    conversation = chat("7*8?", "<think>seven eights</think>56", "1+1?", "<think>easy</think>2")
    tokenizer = make("chatml")
    encoded = enc(conversation, tokenizer)
    assert encoded.think_blocks == 2 and "<think>easy</think>2<|im_end|>" in spans(encoded, tokenizer)
    for template in ("strips_reasoning", "thinks_first"):
        with pytest.raises(ConfigError, match=r"model\.chat_template=FILE"):
            enc(conversation, make(template))
    assert spans(enc(chat("7*8?", "56"), make("strips_reasoning")), make("strips_reasoning")) == ["56</s>"]


def test_role_that_the_template_drops_or_refuses() -> None:
    call = {"name": "f", "arguments": {}}
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "w", "tool_calls": [call]}]
    messages += [{"role": "tool", "content": "zzz"}, {"role": "assistant", "content": "done"}]
    for template, reason in (("strips_reasoning", "lost_by_template"), ("inst", "refused_by_template")):
        with pytest.raises(BadRow) as caught:
            enc(row({"messages": messages}), make(template))
        assert caught.value.reason == reason


def test_last_turn_closed_by_one_mark_more() -> None:
    tokenizer = make("chatml")
    tokenizer.chat_template += "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"
    wanted = ["1<|im_end|>", "2<|im_end|>\n<|endoftext|>"]
    assert spans(enc(chat("one", "1", "two", "2"), tokenizer), tokenizer) == wanted


def test_without_chat_template() -> None:
    tokenizer = make(None, eos_token="<|endoftext|>")
    pair = enc(row({"prompt": "The capital of Peru is", "completion": " Lima."}), tokenizer)
    assert spans(pair, tokenizer) == [" Lima.<|endoftext|>"]
    text = enc(row({"text": "Rain fell. 雨"}), tokenizer)
    assert spans(text, tokenizer) == ["Rain fell. 雨<|endoftext|>"] and text.end_trained
    with pytest.raises(ConfigError, match=r"model\.chat_template"):
        enc(chat("a", "b"), tokenizer)
    with pytest.raises(ConfigError, match="eos_token"):
        enc(row({"text": "a"}), make(None, pad_token="<|endoftext|>"))


def test_prompt_completion_with_chat_template_is_a_turn() -> None:
    tokenizer = make("chatml")
    encoded = enc(row({"prompt": "1, 2, 3,", "completion": " 4"}), tokenizer)
    assert spans(encoded, tokenizer) == [" 4<|im_end|>"]


def test_one_bos_on_plain_text() -> None:
    tokenizer = make(None, bos_token="<s>", eos_token="</s>")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    for text in ("Rain.", "<s>Rain.</s>"):
        encoded = enc(row({"text": text}), tokenizer)
        assert tokenizer.decode(encoded.input_ids) == "<s>Rain.</s>"
    assert tokenizer.decode(enc(row({"prompt": "a", "completion": "b"}), tokenizer).input_ids) == "<s>ab</s>"
