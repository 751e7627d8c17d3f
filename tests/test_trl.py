"""Token ids and labels beside those of TRL's own preparation, on clean rows."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from chats import chat, enc, published, tool_chat
from sft_exp.conversation import Conversation
from sft_exp.labels import IGNORED

CHATS = [
    chat("Hi there", "Hello."),
    chat("你好，请问天空是什么颜色？", "蓝色。🌊 真的！", system="用中文回答。"),
    chat("one", "1", "two", "2\n\n```py\nx = 2\n```", "three", "3 👩‍👩‍👧 ok", system="Be brief."),
    chat("a", "a", "a", "a"),
    chat(*["long question " * 9, "long answer " * 9] * 3),
]


def theirs(rows: list[dict[str, Any]], tokenizer: Any, folder: Path, **settings: Any) -> list[dict[str, list[int]]]:
    """Prepare rows as SFTTrainer does."""
    from datasets import Dataset
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from trl import SFTConfig, SFTTrainer

    tiny = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    args = SFTConfig(output_dir=str(folder), report_to="none", use_cpu=True, max_length=4096, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = SFTTrainer(
            model=Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=1, **tiny)),
            args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
        )  # fmt: skip
    return [dict(row) for row in trainer.train_dataset]


def as_rows(chats: list[Conversation]) -> list[dict[str, Any]]:
    return [{"messages": each.messages, **({"tools": each.tools} if each.tools else {})} for each in chats]


def only_theirs(ours: list[int], labels: list[int]) -> list[int]:
    """Positions that TRL trains and this program does not; it must not be the other way round."""
    assert all(label in (IGNORED, other) for label, other in zip(ours, labels, strict=True))
    return [at for at, (label, other) in enumerate(zip(ours, labels, strict=True)) if label != other]


@pytest.mark.slow
def test_llama_style_labels_are_equal(tmp_path: Path) -> None:
    tokenizer = published("llama3")
    prepared = theirs(as_rows(CHATS), published("llama3"), tmp_path, assistant_only_loss=True)
    for conversation, row in zip(CHATS, prepared, strict=True):
        encoded = enc(conversation, tokenizer)
        assert encoded.input_ids == row["input_ids"] and encoded.labels == row["labels"]


@pytest.mark.slow
@pytest.mark.parametrize("chats", [CHATS, [tool_chat()]], ids=["plain", "tools"])
def test_qwen_labels_differ_by_two_line_breaks_a_turn(tmp_path: Path, chats: list[Conversation]) -> None:
    tokenizer = published("qwen2_5")
    prepared = theirs(as_rows(chats), published("qwen2_5"), tmp_path, assistant_only_loss=True)
    start, end, line = (tokenizer.encode(text) for text in ("<|im_start|>assistant\n", "<|im_end|>\n", "\n"))
    for conversation, row in zip(chats, prepared, strict=True):
        encoded = enc(conversation, tokenizer)
        ids = encoded.input_ids
        assert ids == row["input_ids"]
        more = only_theirs(encoded.labels, row["labels"])
        assert len(more) == 2 * encoded.turns
        for before, after in zip(more[::2], more[1::2], strict=True):
            assert ids[before : before + 1] == ids[after : after + 1] == line
            assert ids[: before + 1][-len(start) :] == start  # the prompt supplies it
            assert ids[: after + 1][-len(end) :] == end  # it follows the end token


@pytest.mark.slow
@pytest.mark.parametrize(("name", "more"), [("qwen2_5", 1), ("llama3", 0)])
def test_prompt_and_completion(tmp_path: Path, name: str, more: int) -> None:
    tokenizer = published(name)
    rows = [{"prompt": each.messages[:-1], "completion": each.messages[-1:]} for each in CHATS]
    for conversation, row in zip(CHATS, theirs(rows, published(name), tmp_path), strict=True):
        encoded = enc(conversation, tokenizer)
        assert encoded.input_ids == row["input_ids"]
        last = max(at for at, label in enumerate(row["labels"]) if label == IGNORED) + 1
        behind = only_theirs(encoded.labels[last:], row["labels"][last:])
        assert behind == [len(row["labels"]) - last - 1] * more  # the line break behind the end token
        if conversation is CHATS[0]:
            assert only_theirs(encoded.labels, row["labels"]) == [len(row["labels"]) - 1] * more


@pytest.mark.slow
def test_r1_labels_differ_by_what_the_prompt_supplies(tmp_path: Path) -> None:
    answer = "<think>\nseven eights\n</think>\n\n56"
    chats = [chat("7*8?", answer), chat("你好", answer, "again", answer, system="Think.")]
    name = "deepseek_r1_distill"
    prepared = theirs(as_rows(chats), published(name), tmp_path, assistant_only_loss=True)
    supplied = published(name).encode("<｜Assistant｜><think>\n", add_special_tokens=False)
    for conversation, row in zip(chats, prepared, strict=True):
        encoded = enc(conversation, published(f"{name}_training"))
        assert encoded.input_ids == row["input_ids"]
        more = only_theirs(encoded.labels, row["labels"])
        assert [encoded.input_ids[at] for at in more] == supplied * encoded.turns
