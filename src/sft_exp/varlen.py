"""torch's variable-length attention, made known to transformers: packed rows without a mask and without FlashAttention.

`torch.nn.attention.varlen` runs FlashAttention's kernels over one flat row of conversations, given where each begins;
no token of one is ever compared with a token of another. It is part of torch from 2.10 on.
"""

import functools
import inspect
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.flash_attention import get_target_dtype
from transformers.masking_utils import flash_attention_mask

from sft_exp.errors import ConfigError

NAME = "varlen"
"""What transformers knows it by, and `model.attention` too."""


def register() -> None:
    """Let models be loaded with `attn_implementation="varlen"`. The mask is FlashAttention's: none for flat rows."""
    AttentionInterface.register(NAME, forward)
    AttentionMaskInterface.register(NAME, flash_attention_mask)


def forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each conversation of one flat row.

    query has shape (1, heads, tokens, width), key and value (1, key-value heads, tokens, width); `cu_seq_lens_q`,
    int32 of shape (conversations + 1,), says where each conversation begins and where the last one ends. Returns
    (1, tokens, heads, width). Raises ConfigError for what the kernels cannot compute, so that nothing is left out.
    """
    if cu_seq_lens_q is None or max_length_q is None or attention_mask is not None or len(query) != 1:
        raise RuntimeError("model.attention=varlen takes flat rows with their boundaries, and got a padded batch")
    if asked := [name for name in ("softcap", "s_aux", "dropout") if others.get(name)]:
        raise ConfigError(f"model.attention=varlen cannot compute this model's {asked[0]}: use model.attention=eager.")
    width = value.shape[-1]
    q, k, v = (_flat(part, get_target_dtype(query, module)) for part in (query, key, value))
    out = _kernel()(
        q, *_widened(k, v), cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q, scale=scaling,
        window_size=(-1, 0) if sliding_window is None else (sliding_window - 1, 0),
    )  # fmt: skip
    return out[None, ..., :width], None


def _flat(part: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """(1, heads, tokens, width) -> (tokens, heads, width), in 16 bit also where rotary embeddings made it fp32."""
    return part[0].transpose(0, 1).to(dtype or part.dtype)


def _widened(key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values as wide as keys, which the kernels want (DeepSeek's are narrower)."""
    if value.shape[-1] < key.shape[-1]:
        value = torch.nn.functional.pad(value, [0, key.shape[-1] - value.shape[-1]])
    return key, value


@functools.cache
def _kernel() -> Any:
    """`varlen_attn`, told to share keys between heads where it wants to be told (torch 2.11 shares them as it is)."""
    from torch.nn.attention.varlen import varlen_attn

    grouped = "enable_gqa" in inspect.signature(varlen_attn).parameters
    return functools.partial(varlen_attn, enable_gqa=True) if grouped else varlen_attn
