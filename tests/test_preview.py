"""A row cut into pieces: nothing lost, no character broken, nothing that commands a terminal."""

import random
from itertools import pairwise

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from chats import chat, enc, make
from preparing import shipped
from sft_exp.labels import IGNORED
from sft_exp.preview import STYLES, ansi, pieces

CHAT = "<|im_start|>user\n你好，世界 👩‍🚀 é x<|im_end|>\n<|im_start|>assistant\n龘🎉 ok<|im_end|>\n"


def llama_style() -> PreTrainedTokenizerFast:
    """Spaces as ▁, unknown characters as bytes, and a decoder that drops the first space."""
    words = ["<unk>", "<s>", "</s>", "▁", "▁Hi", "▁there", "H", "i", "x"]
    vocab = {word: at for at, word in enumerate([*words, *(f"<0x{byte:02X}>" for byte in range(256))])}
    merges = []
    for word in ("▁Hi", "▁there"):
        for at in range(1, len(word)):
            vocab.setdefault(word[:at], len(vocab))
            vocab.setdefault(word[at], len(vocab))
            merges.append((word[:at], word[at]))
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def test_the_answer_and_its_end_are_trained() -> None:
    tokenizer = make("chatml")
    row = enc(chat("你是谁？", "我是 🤖。"), tokenizer)
    assert pieces(row.input_ids, row.labels, tokenizer)[4:] == [  # after the template's own system turn
        ("<|im_start|>", "special"),
        ("user\n你是谁？", "masked"),
        ("<|im_end|>", "special"),
        ("\n", "masked"),
        ("<|im_start|>", "special"),
        ("assistant\n", "masked"),
        ("我是 🤖。", "trained"),
        ("<|im_end|>", "trained special"),
        ("\n", "masked"),
    ]


@pytest.mark.parametrize("seed", range(200))
def test_no_border_breaks_a_character(seed: int) -> None:
    """Labels switch at random tokens, most of them inside characters: the shipped vocabulary has few of these whole."""
    tokenizer, rng = shipped(), random.Random(seed)
    ids = tokenizer.encode(CHAT, add_special_tokens=False)
    labels = [token if rng.random() < 0.5 else IGNORED for token in ids]
    found = pieces(ids, labels, tokenizer)
    assert "".join(text for text, _ in found) == CHAT
    assert "\ufffd" not in "".join(text for text, _ in found)
    assert all(text for text, _ in found)
    assert all(one[1] != two[1] for one, two in pairwise(found))


def test_a_border_inside_a_character_moves_behind_it() -> None:
    tokenizer = shipped()
    ids = tokenizer.encode("a🎉b", add_special_tokens=False)
    assert len(ids) == 6, "the emoji is four tokens"
    assert pieces(ids, [IGNORED] * 3 + ids[3:], tokenizer) == [("a🎉", "masked"), ("b", "trained")]


@pytest.mark.parametrize("seed", range(50))
def test_spaces_stay_with_a_decoder_that_drops_the_first(seed: int) -> None:
    tokenizer, rng = llama_style(), random.Random(seed)
    text = "Hi there 你好 🎉 Hi there"
    ids = tokenizer.encode(text, add_special_tokens=False)
    labels = [token if rng.random() < 0.5 else IGNORED for token in ids]
    assert "".join(piece for piece, _ in pieces(ids, labels, tokenizer)) == text


def test_a_character_cut_off_by_max_length_ends_the_row() -> None:
    tokenizer = shipped()
    ids = tokenizer.encode("ok 🎉", add_special_tokens=False)[:-1]
    assert pieces(ids, ids, tokenizer) == [("ok \ufffd", "trained")]
    assert pieces([], [], tokenizer) == []


def test_added_tokens_are_shown_unless_they_are_spaces() -> None:
    tokenizer = make("chatml")
    tokenizer.add_tokens(["<think>", "    "])
    ids = tokenizer.encode("a<think>    b", add_special_tokens=False)
    assert pieces(ids, ids, tokenizer) == [("a", "trained"), ("<think>", "trained special"), ("    b", "trained")]


ROW = [("<s>", "special"), ("hi\n", "masked"), ("yes", "trained"), ("</s>", "trained special"), ("\n", "masked")]


def test_without_colour_one_pair_of_marks_holds_what_is_trained() -> None:
    assert ansi(ROW, colour=False) == "<s>hi\n⟦yes</s>⟧\n"


def test_with_colour_each_kind_has_its_own() -> None:
    text = ansi(ROW, colour=True)
    assert "\x1b[32myes\x1b[0m\x1b[1;32m</s>\x1b[0m" in text
    assert len(set(STYLES.values())) == len(STYLES)


@pytest.mark.parametrize("colour", [True, False])
def test_text_cannot_command_a_terminal(colour: bool) -> None:
    text = ansi([("\x1b[2J\x07\r\x9b2J\x7f\ttab\n", "masked")], colour)
    body = text.removeprefix("\x1b[90m").removesuffix("\x1b[0m")
    assert body == "␛[2J␇␍\ufffd2J␡\ttab\n"
