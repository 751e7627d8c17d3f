"""Parameter counts and disk needs from the architecture's numbers alone."""

import dataclasses

from sft_exp.schema import AdapterKind, Experiment, Shape

ADAM_BYTES = 8
"""Two fp32 moments per trained parameter in a checkpoint."""
ROW_MULTIPLE = 64
"""Matrix products over the vocabulary are slow for odd sizes; checkpoints of this family have multiples of 64."""


def missing(shape: Shape) -> list[str]:
    """Numbers that are needed to build the model and not given."""
    return [f.name for f in dataclasses.fields(shape) if getattr(shape, f.name) is None]


def vocabulary_problem(given: int, rows: int) -> str:
    """The sentence for an embedding matrix with fewer rows than the tokenizer has tokens."""
    return (
        f"model.shape.vocab_size={given} is less than the tokenizer's {rows} tokens: set it to "
        f"{-(-rows // ROW_MULTIPLE) * ROW_MULTIPLE}, or set model.tokenizer to a smaller one."
    )


def parameters(shape: Shape) -> int:
    """All parameters of a decoder with gated MLP and grouped-query attention.

    Qwen2 has a bias on q, k and v: `L * (2h^2 + 2h*kv + (h + 2kv) + 3h*i + 2h) + h + V*h*(1 if tied else 2)`.
    Checked against the published models: Qwen2.5-0.5B 494.03 M, Qwen2.5-1.5B 1,543.71 M.
    """
    assert not missing(shape)
    h, i, layers = shape.hidden_size or 0, shape.intermediate_size or 0, shape.num_hidden_layers or 0
    kv = h // (shape.num_attention_heads or 1) * (shape.num_key_value_heads or 1)
    bias = h + 2 * kv if shape.model_type == "qwen2" else 0
    layer = 2 * h * h + 2 * h * kv + bias + 3 * h * i + 2 * h
    return layers * layer + h + (shape.vocab_size or 0) * h * (1 if shape.tie_word_embeddings else 2)


def adapter_parameters(shape: Shape, rank: int) -> int:
    """Low-rank factors on all linear layers: rank x (inputs + outputs) of each."""
    h, i, layers = shape.hidden_size or 0, shape.intermediate_size or 0, shape.num_hidden_layers or 0
    kv = h // (shape.num_attention_heads or 1) * (shape.num_key_value_heads or 1)
    return layers * rank * (2 * (h + h) + 2 * (h + kv) + 3 * (h + i))


def trained_parameters(experiment: Experiment) -> int:
    """Parameters that the optimizer moves; for target modules other than all-linear an upper bound."""
    shape = experiment.model.shape
    if experiment.adapter.kind is AdapterKind.full:
        return parameters(shape)
    return adapter_parameters(shape, experiment.adapter.r or 0)


def disk_bytes(experiment: Experiment) -> int:
    """Most bytes a run writes: the final model and all checkpoints kept, one more while it is written.

    Zero where the shape is not known (a local folder of another architecture).
    """
    shape = experiment.model.shape
    if missing(shape):
        return 0
    trained = trained_parameters(experiment)
    weights = trained * 4
    kept = 0
    if experiment.train.save_steps is not None:
        kept = (experiment.train.save_total_limit or 10) + 1
    return weights + kept * (weights + trained * ADAM_BYTES)
