"""The numbers of one experiment from which its memory follows: parameters, bytes per value, tokens, ZeRO stage."""

from dataclasses import dataclass

from sft_exp import sizes
from sft_exp.schema import AdapterKind, Attention, Dtype, Experiment, Precision

WEIGHT_BYTES = {Dtype.float32: 4, Dtype.auto: 4, Dtype.bfloat16: 2, Dtype.float16: 2}
"""Bytes of one stored weight."""
OPTIMIZER_BYTES = (
    ("lion_8bit", 1.0), ("8bit", 2.0), ("lion", 4.0), ("adafactor", 0.02), ("sgd", 0.0), ("adagrad", 4.0),
    ("rmsprop", 4.0),
)  # fmt: skip
"""Part of an optimizer's name -> bytes of state per trained fp32 value; every other one is an Adam with 8."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the formulas read. Counts are values (parameters, tokens), sizes are bytes."""

    hidden: int
    inner: int
    key_value: int
    heads: int
    layers: int
    vocabulary: int
    tied: bool
    parameters: int
    trained: int
    linear: int
    """Parameters of the linear layers inside the decoder: cast by autocast, quantised by QLoRA."""
    kind: AdapterKind
    rank: int
    """Rank of the adapter; 0 without one."""
    stage: int
    offload_optimizer: bool
    offload_param: bool
    ranks: int
    """On all machines."""
    local: int
    """Ranks on one machine."""
    micro: int
    length: int
    accumulates: bool
    """Gradients outlive a forward pass, because several make one step."""
    weight_bytes: int
    compute_bytes: int
    """Bytes of a value in a matrix product."""
    autocast: bool
    """fp32 weights are cast for each product."""
    factor_bytes: int
    """Bytes of one trained value: factors of an adapter are fp32 at stage 0, DeepSpeed makes everything 16 bit."""
    masters: bool
    """fp32 copies of 16-bit weights without DeepSpeed."""
    checkpointing: bool
    packing: bool
    attention: Attention
    optimizer: str
    full_logits: bool
    double_quant: bool
    reduce_bucket: int

    @property
    def tokens(self) -> int:
        """Places in one forward pass of one rank: a padded or packed batch whose rows are all full."""
        return self.micro * self.length

    @property
    def full(self) -> bool:
        """Whether all weights are trained."""
        return self.kind is AdapterKind.full

    @property
    def head(self) -> int:
        """Parameters of the output head."""
        return self.vocabulary * self.hidden

    @property
    def layer(self) -> int:
        """Parameters of one decoder layer."""
        return self.linear // self.layers


def facts(experiment: Experiment) -> Facts | None:
    """Numbers of a resolved experiment; None where the architecture is not known."""
    shape, train, zero = experiment.model.shape, experiment.train, experiment.zero
    if sizes.missing(shape):
        return None
    full, stage = experiment.adapter.kind is AdapterKind.full, zero.stage
    micro, ranks = train.micro_batch or 1, experiment.hw.ranks
    half = train.precision in (Precision.bf16, Precision.fp16)
    weight_bytes = WEIGHT_BYTES[experiment.model.dtype]
    if stage > 0 and half:
        weight_bytes = 2  # the engine casts the whole model
    heads, hidden = shape.num_attention_heads or 1, shape.hidden_size or 0
    key_value = hidden // heads * (shape.num_key_value_heads or 1)
    inner, layers = shape.intermediate_size or 0, shape.num_hidden_layers or 1
    return Facts(
        hidden=hidden, inner=inner, key_value=key_value, heads=heads, layers=layers,
        vocabulary=shape.vocab_size or 0, tied=bool(shape.tie_word_embeddings),
        parameters=sizes.parameters(shape), trained=sizes.trained_parameters(experiment),
        linear=layers * (2 * hidden * hidden + 2 * hidden * key_value + 3 * hidden * inner),
        kind=experiment.adapter.kind, rank=0 if full else experiment.adapter.r or 0, stage=stage,
        offload_optimizer=zero.offload_optimizer, offload_param=zero.offload_param,
        ranks=ranks, local=experiment.hw.processes or 1, micro=micro, length=experiment.dataset.max_length,
        accumulates=train.global_batch > micro * ranks,
        weight_bytes=weight_bytes, compute_bytes=2 if half else 4,
        autocast=half and stage == 0 and weight_bytes == 4,
        factor_bytes=weight_bytes if full or (stage > 0 and half) else 4,
        masters=bool(train.master_weights), checkpointing=train.gradient_checkpointing, packing=train.packing,
        attention=experiment.model.attention,
        optimizer=train.optimizer, full_logits=bool(train.extra.get("label_smoothing_factor")),
        double_quant=bool(experiment.adapter.double_quant), reduce_bucket=zero.reduce_bucket_size,
    )  # fmt: skip


def optimizer_bytes(f: Facts) -> float:
    """Bytes of optimizer state per trained value: two moments for Adam, in the type of what is trained.

    DeepSpeed's optimizer moves fp32 copies. 8-bit optimizers keep one byte per moment and 32 bits for embeddings
    (transformers/trainer.py, `_get_optimizer_cls_and_kwargs`).
    """
    share = (4 if f.stage > 0 else f.factor_bytes) / 4
    name, factor = next(((name, size) for name, size in OPTIMIZER_BYTES if name in f.optimizer), ("adam", 8.0))
    if "8bit" in name and f.full:
        embedding = min(1.0, f.head * (1 if f.tied else 2) / f.trained)
        return factor * (1 - embedding) + 8.0 * embedding
    return factor * share


def step_bytes(f: Facts) -> float:
    """Bytes per trained value that live only inside the optimizer's step.

    torch's foreach implementation, the default of `adamw_torch` on a GPU, makes the square root of the second moment
    for all values at once (torch/optim/adamw.py); the fused one makes nothing.
    """
    per_value = 4 if f.stage > 0 else f.factor_bytes
    return per_value if f.optimizer in ("adamw_torch", "adamw_hf", "adamw") else 0
