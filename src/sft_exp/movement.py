"""How far the rows of added tokens have moved: a token whose rows stay as they start was not learned."""

import torch
from peft.utils.other import TrainableTokensWrapper
from torch import nn
from transformers import PreTrainedModel

from sft_exp.random_weights import whole

METRIC = "tokens/new_rows_moved_min"
Rows = list[torch.Tensor]
"""The tokens' rows of the input matrix and, where it is a matrix of its own, of the output head: each (tokens, hidden),
fp32 on the CPU."""


def rows(model: PreTrainedModel, ids: list[int]) -> Rows:
    """The rows of `ids` as a forward pass uses them, adapters included; every rank must call it under ZeRO-3."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = model.config.get_text_config().tie_word_embeddings
    return [_rows(module, ids) for module in ([embedding] if tied or head is None else [embedding, head])]


def moved(before: Rows, after: Rows) -> float:
    """The smallest relative change of a row, |after - before| / |before| in L2; 0 means that it did not move."""
    shares = [
        (new - old).norm(dim=1) / old.norm(dim=1).clamp(min=1e-12) for old, new in zip(before, after, strict=True)
    ]
    return float(torch.cat(shares).min())


def _rows(module: nn.Module, ids: list[int]) -> torch.Tensor:
    if isinstance(module, TrainableTokensWrapper):
        layer = module.token_adapter
        adapter = layer.active_adapters[0]
        order = [layer.token_indices[adapter].index(token) for token in ids]
        return _read(layer.trainable_tokens_delta[adapter], order)
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return _read(weight, ids)


def _read(weight: torch.Tensor, order: list[int]) -> torch.Tensor:
    with whole(weight), torch.no_grad():
        return weight[order].detach().float().cpu().clone()
