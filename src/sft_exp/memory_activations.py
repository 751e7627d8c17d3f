"""What a forward pass keeps for its backward pass, and what the loss needs besides.

The per-layer formulas were counted with saved-tensor hooks on Hugging Face's Qwen2 and are exact to the byte there; for
other decoders with gated MLP and grouped-query attention they are the same count. h hidden, i inner, kv key-value
width, n heads, s length.
"""

from sft_exp.memory_facts import Facts
from sft_exp.schema import AdapterKind, Attention

TILE_TOKENS, TILE_WORDS = 4096, 32768
"""Tile of TRL's fused head: tokens (trl/kernels/chunked_logprob.py) x words (trl/trainer/utils.py)."""
EXPANDING = (Attention.flex_attention,)
"""Implementations that repeat keys and values for every query head."""


def masked(f: Facts) -> bool:
    """Whether sdpa gets a mask: in a batch of several padded rows, or between conversations packed into one row.

    A single padded row has no padding, and transformers then leaves the mask away (`_ignore_causal_mask_sdpa`).
    """
    return f.attention is Attention.sdpa and (f.packing or f.micro > 1)


def layer_token(f: Facts) -> float:
    """Bytes that one layer keeps for one token, without checkpointing and without terms in s^2.

    16-bit weights: 20h + 4kv + 8i + 4n + 8; fp32 weights under autocast 30h + ... (norms and residual in fp32); all
    fp32: 32h + 8kv + 16i + 4n + 8. With a mask, keys and values are repeated for every head: 4kv becomes 4h.
    """
    size = f.compute_bytes
    repeated = masked(f) or f.attention in (*EXPANDING, Attention.eager)
    wide = f.hidden if repeated else f.key_value
    if f.autocast:
        kept = 30 * f.hidden + 4 * wide + 8 * f.inner
    elif size == 4:
        kept = 32 * f.hidden + 8 * wide + 16 * f.inner
    else:
        kept = 20 * f.hidden + 4 * wide + 8 * f.inner
    return kept + adapter_token(f) + 4 * f.heads + 8


def adapter_token(f: Facts) -> float:
    """What an adapter changes in `layer_token`, in bytes, counted with saved-tensor hooks on peft's layers.

    Two frozen norms do not keep their product: 2 x 2h (fp32: 2 x 4h) less. Each of the seven linear layers keeps the r
    values between its factors. Factors in fp32 take the input in fp32 (peft/tuners/lora/layer.py, `_cast_input_dtype`),
    and autocast casts it back for each layer: q, k, v, o, gate and up keep a copy of their own, 8h more. bitsandbytes'
    layers leave their input alone under autocast (peft/tuners/lora/bnb.py, `requires_conversion`).
    """
    if f.full:
        return 0
    copies = 8 * f.hidden if f.kind is AdapterKind.lora and casts_factors(f) else 0
    return copies + (7 * f.rank - 2 * f.hidden) * f.compute_bytes


def casts_factors(f: Facts) -> bool:
    """Whether autocast makes 16-bit copies of an adapter's fp32 factors."""
    return not f.full and f.factor_bytes > f.compute_bytes


def layer_square(f: Facts) -> float:
    """Bytes of one layer that grow with the square of the length.

    sdpa with a mask turns it into a 16-bit one for each layer, which is kept: b * s * s, or (b * s)^2 for packed rows,
    that are one long row. eager keeps scores and probabilities: 6 bytes (fp32: 8) x n * b * s * s.
    """
    square = float(f.tokens) ** 2 if f.packing else float(f.tokens) * f.length
    if f.attention is Attention.eager:
        return (6 if f.compute_bytes == 2 else 8) * f.heads * square
    return f.compute_bytes * square if masked(f) else 0


def layer_kept(f: Facts) -> float:
    """Everything one layer keeps."""
    return layer_token(f) * f.tokens + layer_square(f)


def residual(f: Facts) -> float:
    """What a checkpointed layer keeps: its input, fp32 where weights are (2h or 4h per token, exact)."""
    return (4 if f.autocast or f.compute_bytes == 4 else 2) * f.hidden * f.tokens


def layer_working(f: Facts) -> float:
    """Temporary results of one layer's backward pass, beyond what it keeps: largest inside the MLP.

    Its product's gradient and that of both factors are there together, while the saved product is freed: 2i values, and
    3h for the gradients of the layer and its input (counted by following every tensor of a backward pass).
    """
    mlp = (2 * f.inner + 3 * f.hidden) * f.compute_bytes * f.tokens
    scores = 4 * f.heads * float(f.tokens) * f.length if f.attention is Attention.eager else 0
    dequantised = f.hidden * f.inner * f.compute_bytes if f.kind is AdapterKind.qlora else 0
    return mlp + scores + dequantised


def outside_layers(f: Facts) -> float:
    """Embedding, last norm and the attention mask, kept once."""
    mask = float(f.tokens) ** 2 if f.packing else float(f.tokens) * f.length
    return 8 * f.hidden * f.tokens + (mask if masked(f) else 0)


def cast_weights(f: Facts) -> float:
    """autocast's 16-bit copies of fp32 weights, kept until the forward pass ends, and by its graph until used."""
    if casts_factors(f):
        return 2.0 * f.trained
    return 2.0 * f.linear if f.autocast else 0


def kept(f: Facts) -> float:
    """Activations when the backward pass begins."""
    each = residual(f) if f.checkpointing else layer_kept(f)
    casts = 0 if f.checkpointing else cast_weights(f)
    return f.layers * each + outside_layers(f) + casts


def loss_forward(f: Facts) -> float:
    """The loss while it is computed: one tile of logits and the masked copy of the last hidden states."""
    if f.full_logits:
        return 12.0 * f.tokens * f.vocabulary
    tile = min(f.tokens, TILE_TOKENS) * TILE_WORDS * f.compute_bytes
    words = TILE_WORDS * f.hidden * 2 if f.autocast else 0
    return tile + words + f.tokens * f.hidden * (4 if f.autocast else f.compute_bytes)


def loss_backward(f: Facts) -> float:
    """The loss in its backward pass: tile, fp32 gradients of hidden states and head, and their copies in 16 bit.

    TRL's fused head (trl/kernels/chunked_logprob.py, `ChunkedLogProbFunction.backward`) accumulates both in fp32. With
    label smoothing the logits are built whole: 12 bytes per token and word.
    """
    if f.full_logits:
        return 12.0 * f.tokens * f.vocabulary
    narrow = f.compute_bytes == 2 and not f.autocast
    hidden = f.tokens * f.hidden * (4 + (2 if narrow else 0))
    head = f.head * (4 + (2 if narrow else 0)) if f.full else 0
    return loss_forward(f) + hidden + head
