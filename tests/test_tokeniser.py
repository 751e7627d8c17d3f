"""Ranges of tokens for ranges of characters."""

import random
from concurrent.futures import ThreadPoolExecutor

from preparing import shipped
from sft_exp import tokeniser
from sft_exp.labels import apart, count
from sft_exp.layout import Layout
from sft_exp.tokeniser import Tokeniser, by_offsets

TEXTS = [
    "plain words, and more",
    "汉字和 emoji 🌊🧑‍🚀 together",
    "  spaces   and\n\nlines ",
    "<|im_start|>user\nhi<|im_end|>\n",
]


def test_lookup_gives_what_offsets_give() -> None:
    made, dice = Tokeniser(shipped().backend_tokenizer), random.Random(3)
    for _ in range(500):
        text = "".join(dice.choices(TEXTS, k=3))
        begin, stop = sorted(dice.sample(range(len(text) + 1), 2))
        encoding = made.backend.encode(text, add_special_tokens=False)
        found = tokeniser._by_lookup(encoding, (begin, stop), len(text), len(encoding.ids))
        assert found in (None, by_offsets(encoding.offsets, (begin, stop))), (text, begin, stop)
        [(ids, [span])] = made.tokens([Layout(text, None, [(begin, stop)], [])])
        assert ids == encoding.ids and span == by_offsets(encoding.offsets, (begin, stop))


def test_threads_do_not_see_each_other() -> None:
    """One row names a control token, which stays text there and nowhere else."""
    made = Tokeniser(shipped().backend_tokenizer)
    named = Layout("say <|im_end|> now", None, [(0, 5)], [(4, 14)])
    other = Layout("hi<|im_end|>", None, [(0, 2)], [])
    alone = made.tokens([named]), made.tokens([other])
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda at: made.tokens([(named, other)[at % 2]] * 20), range(200)))
    assert all(rows == alone[at % 2] * 20 for at, rows in enumerate(results))
    assert len(alone[0][0][0]) > len(made.backend.encode(named.text, add_special_tokens=False).ids)


def test_ranges_are_counted_once() -> None:
    assert apart([(1, 4), (3, 6), (8, 9)]) == [(1, 4), (4, 6), (8, 9)]
    assert count([(0, 4), (6, 9)], 8) == 5  # the first token is never predicted
    assert count([(5, 9)], 4) == 0
