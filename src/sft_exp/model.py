"""Build the language model, give new tokens their rows, and make what is saved stop at the chat's end token."""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from sft_exp.checkpoint import not_loadable, resolve, weights_problem
from sft_exp.errors import ConfigError
from sft_exp.random_weights import random_model, whole
from sft_exp.schema import Model, Weights
from sft_exp.sizes import ROW_MULTIPLE

NOISE = 0.1
"""Spread of a new row around the mean of its pieces, as a share of the pieces' own spread."""


def load_model(
    model: Model, *, dtype: str, attention: str, seed: int, quantization: BitsAndBytesConfig | None = None
) -> PreTrainedModel:
    """Load or draw the weights in `dtype`, such as 'bfloat16'.

    Under ZeRO-3 the SFTConfig must exist before, so that transformers builds the model in shards.
    """
    if model.weights is Weights.random:
        return random_model(model, dtype=dtype, attention=attention, seed=seed, quantization=quantization)
    if problem := weights_problem(model):
        raise ConfigError(problem)
    name = resolve(model)
    try:
        # safetensors are preferred by default; a checkpoint that has only .bin files is read without running its code
        return AutoModelForCausalLM.from_pretrained(
            name,
            dtype=dtype,
            attn_implementation=attention,
            revision=model.revision or "main",
            trust_remote_code=model.trust_remote_code,
            quantization_config=quantization,
        )
    except OSError as error:
        raise not_loadable("model", name, error) from error


def add_token_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    added: list[str],
    descriptions: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Make room for the whole vocabulary and set the rows of the `added` tokens to the mean of their pieces' rows.

    The pieces are those of the token's description, or without one of its name. Rows are never taken away: checkpoints
    often have more than tokens. `added` are tokens that the checkpoint has never seen; rows that were trained before
    must not be in it.
    """
    old_rows = model.config.get_text_config().vocab_size
    needed = max(tokenizer.get_vocab().values()) + 1
    if needed > old_rows:
        model.resize_token_embeddings(needed, pad_to_multiple_of=ROW_MULTIPLE, mean_resizing=False)
    texts = {token: descriptions.get(token, token) for token in added}
    pieces = {tokenizer.convert_tokens_to_ids(token): _pieces(tokenizer, text) for token, text in texts.items()}
    weights = [model.get_input_embeddings().weight]
    if (head := model.get_output_embeddings()) is not None and head.weight is not weights[0]:
        weights.append(head.weight)
    for weight in weights:
        with whole(weight) as ours, torch.no_grad():
            if ours:
                _set_rows(weight, pieces, old_rows)


def _set_rows(weight: torch.Tensor, pieces: dict[int, list[int]], old_rows: int) -> None:
    """Write the rows; transformers' own start is nearly the same for all new tokens, noise makes them differ."""
    if len(weight) > old_rows:
        weight[old_rows:] = weight[:old_rows].mean(dim=0, dtype=torch.float32).to(weight.dtype)
    for token, parts in pieces.items():
        rows = weight[parts].float()
        generator = torch.Generator().manual_seed(token)
        noise = torch.randn(rows.shape[1], generator=generator).to(rows.device)
        weight[token] = (rows.mean(dim=0) + NOISE * rows.std() * noise).to(weight.dtype)


def _pieces(tokenizer: PreTrainedTokenizerFast, token: str) -> list[int]:
    """Ids of a text by the vocabulary alone, as if it were no token."""
    backend = tokenizer.backend_tokenizer
    text = backend.normalizer.normalize_str(token) if backend.normalizer else token
    words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if backend.pre_tokenizer else [text]
    pieces = [piece.id for word in words for piece in backend.model.tokenize(word)]
    if not pieces:
        raise ConfigError(
            f"the vocabulary has no piece of {token!r}, from which a row could start: set model.token_descriptions."
        )
    return pieces


def align_end_token(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, end_id: int) -> None:
    """Let `generate`, and every loader of what is saved, stop at `end_id`, the token that ends a chat turn.

    The checkpoint's own end tokens still stop as well: a base model's plain text ends with another token.
    """
    config, generation = model.config.get_text_config(), model.generation_config
    others = generation.eos_token_id if generation.eos_token_id is not None else config.eos_token_id
    others = others if isinstance(others, list) else [others]
    generation.eos_token_id = [end_id, *(other for other in others if other not in (None, end_id))]
    config.eos_token_id = end_id
    config.pad_token_id = generation.pad_token_id = tokenizer.pad_token_id
    # The trainer copies the tokenizer's end token back to the model, so it must agree.
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end_id)
