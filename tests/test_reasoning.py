"""Reasoning models: their published template drops think blocks, the training template keeps and trains them."""

import pytest

from chats import chat, enc, make, published, row, spans
from sft_exp import reasoning
from sft_exp.conversation import BadRow
from sft_exp.errors import ConfigError

END = "<｜end▁of▁sentence｜>"
THINK = "<think>\nseven eights 乘\n</think>\n\n56 🎉"


@pytest.mark.parametrize(
    ("answer", "trained"),
    [
        (THINK, "seven eights 乘\n</think>\n\n56 🎉"),
        ("seven eights\n</think>\n\n56", "seven eights\n</think>\n\n56"),  # the opening mark came with the prompt
        ("<think>seven eights</think>56", "seven eights</think>56"),
        ("\n<think>\n\n</think>\n\n56", "</think>\n\n56"),
        ("<think></think>56", "</think>56"),
    ],
)
def test_r1_trains_what_follows_the_prompt(answer: str, trained: str) -> None:
    tokenizer = published("deepseek_r1_distill_training")
    encoded = enc(chat("7*8?", answer, "again", answer, system="Think."), tokenizer)
    assert spans(encoded, tokenizer) == [trained + END] * 2
    assert (encoded.think_blocks, encoded.row_think_blocks) == (2, 2)
    prompt = tokenizer.apply_chat_template(
        chat("7*8?", "x", system="Think.").messages[:-1], add_generation_prompt=True, return_dict=False
    )
    assert encoded.input_ids[: len(prompt)] == prompt
    assert prompt[-1] != encoded.labels[len(prompt)] == encoded.input_ids[len(prompt)]


def test_r1_takes_reasoning_beside_the_answer() -> None:
    tokenizer = published("deepseek_r1_distill_training")
    messages = [
        {"role": "user", "content": "7*8?"},
        {"role": "assistant", "content": "56", "reasoning_content": "seven eights\n"},
    ]
    encoded = enc(row({"messages": messages}), tokenizer)
    assert spans(encoded, tokenizer) == [f"seven eights\n</think>\n\n56{END}"]


@pytest.mark.parametrize("name", ["deepseek_r1_distill", "deepseek_r1_distill_training"])
@pytest.mark.parametrize("answer", ["56", "First: <think>x</think>56", "<think>unclosed"])
def test_r1_row_without_reasoning_is_bad(name: str, answer: str) -> None:
    with pytest.raises(BadRow, match="message 2 does not begin with a <think> block") as caught:
        enc(chat("7*8?", answer), published(name))
    assert caught.value.reason == "no_reasoning"


def test_answer_after_a_tool_needs_no_reasoning() -> None:
    tokenizer = published("deepseek_r1_distill_training")
    messages = [*chat("Weather?", THINK).messages, {"role": "tool", "content": "3 C"}]
    encoded = enc(row({"messages": [*messages, {"role": "assistant", "content": "Cold."}]}), tokenizer)
    assert spans(encoded, tokenizer)[1] == f"Cold.{END}"


def test_published_templates_name_the_training_template() -> None:
    for name, conversation in (
        ("deepseek_r1_distill", chat("7*8?", THINK)),
        ("qwen3", chat("7*8?", THINK, "again", THINK)),  # the same reasoning again, which stands behind
    ):
        with pytest.raises(ConfigError, match=r"set model\.chat_template=training, or model\.chat_template=FILE"):
            enc(conversation, published(name))
    with pytest.raises(ConfigError, match=r": set model\.chat_template=FILE\.jinja"):
        enc(chat("7*8?", THINK), make("thinks_first"))


def test_think_blocks_of_the_row_and_of_the_trained_text() -> None:
    tokenizer = published("qwen3")
    added = enc(chat("7*8?", "56"), tokenizer)
    assert spans(added, tokenizer) == ["<think>\n\n</think>\n\n56<|im_end|>"]
    assert (added.think_blocks, added.row_think_blocks) == (1, 0)
    assert reasoning.count(chat("<think>a</think>", THINK, "b", "c").messages) == 1
