"""Greedy answers to token sequences, in batches, shared out to the ranks."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast

from sft_exp.probes.quiet import generation_settings
from sft_exp.probes.ranks import gathered, share


@dataclass(frozen=True)
class Answer:
    """What a model writes behind a prompt."""

    ids: list[int]
    """Without the end token."""
    ended: bool
    """The model has written an end token; otherwise its tokens were used up."""
    text: str


@dataclass
class Speaker:
    """Answers prompts with one model."""

    model: Any
    """Not wrapped, between two steps; under ZeRO-3 all ranks must answer together."""
    tokenizer: PreTrainedTokenizerFast
    tokens: int
    """Longest answer."""
    batch: int
    together: bool
    """ZeRO-3: each rank holds a part of every weight, so all must generate in step."""

    def answer(self, prompts: list[list[int]]) -> list[Answer]:
        """One answer for each prompt, the same list on every rank."""
        # Prompts of like length share a batch: less padding. Under ZeRO-3 every rank gets as many, some of them twice.
        order = sorted(range(len(prompts)), key=lambda at: len(prompts[at]))
        mine = share(order, equal=self.together)
        made = self._batches([prompts[at] for at in mine])
        answers = dict(pair for part in gathered(list(zip(mine, made, strict=True))) for pair in part)
        return [self._read(answers[at]) for at in range(len(prompts))]

    def _batches(self, prompts: list[list[int]]) -> list[list[int]]:
        made: list[list[int]] = []
        while len(made) < len(prompts):
            try:
                made += self._generate(prompts[len(made) : len(made) + self.batch])
            except torch.cuda.OutOfMemoryError:
                if self.together or self.batch == 1:
                    raise
                torch.cuda.empty_cache()
                self.batch //= 2
        return made

    def _generate(self, prompts: list[list[int]]) -> list[list[int]]:
        longest, pad = max(map(len, prompts)), self.tokenizer.pad_token_id
        device = self.model.device
        ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts], device=device)
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
        with generation_settings(self.model, self._settings()):
            output = self.model.generate(input_ids=ids, attention_mask=mask, synced_gpus=self.together)
        return [row[longest:] for row in output.tolist()]

    def _settings(self) -> GenerationConfig:
        """Greedy, and nothing else of the checkpoint's settings."""
        return GenerationConfig(
            max_new_tokens=self.tokens, do_sample=False, use_cache=True, eos_token_id=self._ends(),
            pad_token_id=self.tokenizer.pad_token_id, bos_token_id=self.model.generation_config.bos_token_id,
        )  # fmt: skip

    def _ends(self) -> list[int]:
        ends = self.model.generation_config.eos_token_id
        return ends if isinstance(ends, list) else [ends] if ends is not None else []

    def _read(self, ids: list[int]) -> Answer:
        """Cut at the first end token; what is behind it is padding."""
        end = next((at for at, token in enumerate(ids) if token in self._ends()), None)
        kept = ids[: self.tokens] if end is None else ids[:end]
        return Answer(kept, end is not None, self.tokenizer.decode(kept, skip_special_tokens=False).strip())
