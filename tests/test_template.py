"""What a chat template puts around a turn, and templates that fail."""

from pathlib import Path

import pytest
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from chats import TEMPLATES, TRL_TEMPLATES, chat, enc, make, published, row, spans
from sft_exp.errors import ConfigError
from sft_exp.labels import Encoder, chat_end_token
from sft_exp.schema import Loss
from sft_exp.template import ChatTemplate


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


def end_text(name: str) -> str:
    """What a template of TRL puts after an answer."""
    tokenizer = make(None, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = (TRL_TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(tokenizer).end_text


@pytest.mark.parametrize("file", sorted(TRL_TEMPLATES.glob("*_training.jinja")), ids=lambda file: file.stem)
def test_training_templates_end_a_turn_no_otherwise_than_inference_does(file: Path) -> None:
    try:
        published_end = end_text(file.stem.removesuffix("_training"))
    except ConfigError:  # those of models that see want contents in parts
        pytest.skip("it cannot write plain text")
    assert published_end in ("", end_text(file.stem))  # GLM's begins the next turn and does not end the last


def test_begin_token_is_never_written_twice() -> None:
    tokenizer = published("llama3")
    bos = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{tokenizer.bos_token} $A", special_tokens=[(tokenizer.bos_token, bos)]
    )
    assert tokenizer("a").input_ids[0] == bos  # the tokenizer adds one, and the template writes one
    assert enc(chat("a", "b"), tokenizer).input_ids.count(bos) == 1
    tokenizer.chat_template = "{{ bos_token }}" + str(tokenizer.chat_template)
    with pytest.raises(ConfigError, match=r"begin token <\|begin_of_text\|> twice.*model\.chat_template=FILE"):
        enc(chat("a", "b"), tokenizer)


def in_pieces(tokenizer: PreTrainedTokenizerFast) -> tuple[str, ...]:
    return Encoder(tokenizer, max_length=8, loss=Loss.assistant).marks.in_pieces


def test_marks_that_are_no_tokens_are_known() -> None:
    tokenizer = make("chatml")
    assert in_pieces(tokenizer) == in_pieces(published("llama3")) == in_pieces(make(None, eos_token="<s>")) == ()
    tokenizer.chat_template = str(tokenizer.chat_template).replace("<|im_start|>", "<|turn|>")
    assert in_pieces(tokenizer) == ("<|turn|>",)
    tokenizer.add_tokens(["<|turn|>"])
    assert in_pieces(tokenizer) == ()


def test_system_prompt_that_is_added() -> None:
    tokenizer = make("chatml")
    marks = Encoder(tokenizer, max_length=8, loss=Loss.assistant).marks
    assert marks.added_system == ChatTemplate(tokenizer).added_system == "You answer questions."
    tokenizer.chat_template = "{{ bos_token }}Today: Monday.\n" + (TEMPLATES / "inst.jinja").read_text()
    assert ChatTemplate(tokenizer).added_system == "Today: Monday."


def test_end_is_trained_where_the_pad_token_is_the_end_token() -> None:
    tokenizer = published("qwen2_5")
    tokenizer.pad_token = tokenizer.eos_token
    encoded = enc(chat("a", "b"), tokenizer)
    assert encoded.labels[-2] == tokenizer.eos_token_id == tokenizer.pad_token_id


def test_ends_are_counted() -> None:
    tokenizer = published("qwen2_5")
    conversation = chat("a", "b", "c", "d")
    whole = enc(conversation, tokenizer)
    length = len(whole.input_ids)
    assert (whole.turns, whole.ends_trained, whole.end_inside, whole.last_end_trained) == (2, 2, True, True)
    breakless = enc(conversation, tokenizer, max_length=length - 1)  # only the line break behind the end is cut off
    assert breakless.truncated and breakless.end_inside and breakless.last_end_trained
    cut = enc(conversation, tokenizer, max_length=length - 2)
    assert (cut.turns, cut.ends_trained, cut.end_inside, cut.last_end_trained) == (2, 1, False, False)
    tokenizer.chat_template = str(tokenizer.chat_template).replace("<|im_end|>", "")
    endless = enc(conversation, tokenizer)
    assert endless.end_inside and not endless.ends_trained
