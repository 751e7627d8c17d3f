"""How much two models differ: their logits on a few texts."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

CHATS = (
    ("Why is the sky blue?", "Air scatters blue light more strongly than red light, so we see blue from every side."),
    ("怎样泡一杯绿茶？", "水温约八十度，茶叶三克，泡两分钟。"),
    ("Write a Python function that adds two numbers.", "def add(a, b):\n    return a + b"),
    ("¿Cuánto es 17 por 23?", "17 × 23 = 391."),
)
"""Question and answer of each text."""


@dataclass(frozen=True)
class Difference:
    """Of the second model's logits from the first one's, over all places of all texts."""

    logits: float
    """Norm of the difference / norm of the first one's; at each place the mean over the vocabulary is taken off, which
    no probability depends on."""
    same: float
    """Share of places with the same likeliest token."""
    places: int

    @property
    def sentence(self) -> str:
        """For people."""
        return f"relative difference {self.logits:.2g}; same likeliest token at {self.same:.1%} of {self.places} places"


def texts(tokenizer: PreTrainedTokenizerFast, added: list[str]) -> list[torch.Tensor]:
    """Ids of each text, written by the chat template where there is one; `added` tokens are in one of their own."""
    written = [_written(tokenizer, question, answer) for question, answer in CHATS]
    if added:
        written.append(_written(tokenizer, "Use them.", " word ".join(added)))
    plain = not tokenizer.chat_template
    return [tokenizer(text, return_tensors="pt", add_special_tokens=plain).input_ids for text in written]


def _written(tokenizer: PreTrainedTokenizerFast, question: str, answer: str) -> str:
    if not tokenizer.chat_template:
        return f"{question}\n{answer}"
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False))


@torch.inference_mode()  # type: ignore[untyped-decorator]
def logits(network: Any, batches: list[torch.Tensor]) -> list[torch.Tensor]:
    """Logits of each text, [places, vocabulary], on the CPU."""
    return [network(input_ids=ids.to(network.device)).logits[0].float().cpu() for ids in batches]


def compare(before: list[torch.Tensor], after: list[torch.Tensor]) -> Difference:
    """Compare the logits of equal texts, each [places, vocabulary]."""
    first, second = (torch.cat([each - each.mean(-1, keepdim=True) for each in found]) for found in (before, after))
    return Difference(
        logits=float((second - first).double().norm() / first.double().norm()),
        same=float((first.argmax(-1) == second.argmax(-1)).double().mean()),
        places=len(first),
    )
