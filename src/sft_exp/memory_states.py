"""What lives as long as the run: weights, fp32 copies, optimizer state, gradients and DeepSpeed's buffers, per GPU.

P parameters, T trained ones, N ranks. Read in torch, accelerate and deepspeed 0.19 (runtime/zero/stage_1_and_2.py,
stage3.py).
"""

from sft_exp.memory_facts import Facts, optimizer_bytes, step_bytes
from sft_exp.schema import AdapterKind

NF4_BYTES = 0.5 + 4 / 64
"""4-bit value and one fp32 constant for 64 of them (bitsandbytes)."""
NF4_DOUBLE_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""The constants in 8 bit, with an fp32 constant for 256 of those."""
LIVE_PARAMETERS = 1_000_000_000
"""stage3_max_live_parameters: gathered values that are kept for reuse."""
SUB_GROUP = 1_000_000_000
"""Values that stage 3 updates at a time (sub_group_size)."""
NORM_VALUES = 250_000_000
"""Values whose norm stage 3 takes at a time."""


def shards(f: Facts) -> int:
    """Parts that what is trained is cut into."""
    return f.ranks if f.stage > 0 else 1


def base_weights(f: Facts) -> float:
    """All weights of the base model in one piece, quantised where QLoRA does that."""
    if f.kind is not AdapterKind.qlora:
        return float(f.parameters * f.weight_bytes)
    constants = NF4_DOUBLE_BYTES if f.double_quant else NF4_BYTES
    return f.linear * constants + (f.parameters - f.linear) * f.weight_bytes


def weights(f: Facts) -> float:
    """Weights on the card: all of them, 1/N at stage 3, and none with offloaded parameters; without gathered ones."""
    if f.stage < 3:
        return base_weights(f)
    return 0 if f.offload_param else base_weights(f) / f.ranks


def gathered(f: Facts, values: int | None = None) -> float:
    """Stage 3: weights put together for use: at most `values`, or all that may be kept for reuse.

    One rank uses its own without a copy unless they come from the host.
    """
    if f.stage < 3 or (f.ranks == 1 and not f.offload_param):
        return 0
    return float(min(f.parameters, LIVE_PARAMETERS if values is None else values) * f.weight_bytes)


def factors(f: Facts) -> float:
    """Weights of the adapter."""
    if f.full or f.offload_param:
        return 0
    return f.trained * f.factor_bytes / (f.ranks if f.stage == 3 else 1)


def master(f: Facts) -> float:
    """fp32 copies of what is trained: 4T/N under DeepSpeed, 4T in plain torch where `train.master_weights` asks."""
    if f.masters:
        return 4.0 * f.trained
    return 4.0 * f.trained / f.ranks if f.stage > 0 and not f.offload_optimizer else 0


def optimizer(f: Facts) -> float:
    """Moments: 8T for Adam in fp32, 8T/N from stage 1 on, in host memory with offload."""
    return 0 if f.offload_optimizer else optimizer_bytes(f) * f.trained / shards(f)


def gradients(f: Facts) -> float:
    """Gradients when the backward pass of a step has ended: whole at stage 0, T/N above, in host memory with offload.

    Stages 1 and 2 copy what belongs to a rank into one buffer (`copy_grads_in_partition`); all other gradients are
    views of the reduce buckets or freed.
    """
    if f.stage > 0 and f.offload_optimizer:
        return 0
    return f.trained * f.factor_bytes / shards(f)


def always_gradients(f: Facts) -> float:
    """Gradients that are there when the backward pass begins: those of earlier passes, or stage 3's fixed buffer.

    Stage 1 reduces in the last pass of a step only, so that earlier ones leave whole gradients.
    """
    if f.stage == 1 and f.accumulates:
        return float(f.trained * f.factor_bytes)
    return gradients(f) if f.accumulates or f.stage == 3 else 0


def reduced_gradients(f: Facts) -> float:
    """Gradients from the first full reduce bucket on: the rank's whole buffer is made then (`copy_grads_in_partition`).

    Stage 2 adds it to that of earlier passes, `all_grad_tensors`, when the pass ends.
    """
    if f.stage not in (1, 2):
        return always_gradients(f)
    return gradients(f) + (always_gradients(f) if f.stage == 2 else 0)


def reducers(f: Facts) -> float:
    """DistributedDataParallel's buckets: a second copy of the gradients (`gradient_as_bucket_view` is off)."""
    return float(f.trained * f.factor_bytes) if f.stage == 0 and f.ranks > 1 else 0


def largest(f: Facts) -> float:
    """Values of the largest trained parameter."""
    return float(f.head if f.full else f.rank * max(f.inner, f.hidden))


def fixed_buckets(f: Facts) -> float:
    """DeepSpeed buffers that are always there: stage 3's reduce bucket; stage 1 and 2's way to the host.

    The latter takes the largest gradient (`temp_grad_buffer_for_gpu_offload`, stage_1_and_2.py only).
    """
    if f.stage == 3:
        return float(f.reduce_bucket * f.factor_bytes)
    return largest(f) * f.factor_bytes if f.stage > 0 and f.offload_optimizer else 0


def backward_buckets(f: Facts) -> float:
    """Stages 1 and 2 fill two reduce buckets in turn (overlap_comm), from the first gradient on (`setup_buckets`)."""
    return 2.0 * f.reduce_bucket * f.factor_bytes if f.stage in (1, 2) else 0


def to_host(f: Facts) -> float:
    """The largest gradient on its way to the host: its norm is taken in fp64 (`get_norm_dtype`).

    A gradient larger than the bucket is not copied there and still exists. Stage 3 takes norms of 250 million values at
    a time (`_constant_buffered_norm2`) and has the gradient once more, from its buffer on the host (`partition_grads`).
    """
    if not f.offload_optimizer:
        return 0
    part = min(largest(f), f.trained / f.ranks)
    own = largest(f) * f.factor_bytes if largest(f) > f.reduce_bucket else 0
    if f.stage == 3:
        return own + part * f.factor_bytes / f.ranks + 8 * min(part / f.ranks, NORM_VALUES)
    return own + 8 * part


def step(f: Facts) -> float:
    """What the optimizer's step needs besides the gradients: an fp32 copy of them, and the optimizer's own results.

    Stages 1 and 2 flatten the 16-bit gradients first, 2T/N + 4T/N. Their buffer serves all parameter groups and lives
    until the last one is stepped (`step`, stage_1_and_2.py); the Trainer makes two where norms or biases are trained,
    without weight decay. An adapter has one, whose gradients are freed before the update.
    """
    if f.offload_optimizer:
        return 0
    part = f.trained / shards(f)
    sub_group = min(part, SUB_GROUP) if f.stage == 3 else part
    update = sub_group * ((4 if f.stage > 0 else 0) + step_bytes(f))
    if f.stage == 3:  # flattens in 16 bit too, one sub-group after the other (`_prepare_fp32_grad_for_sub_group`)
        return max(update, sub_group * (f.factor_bytes + 4))
    if f.stage == 0:  # fp32 gradients for the copies, each in place of a 16-bit one
        return update + (4.0 * f.trained - gradients(f) if f.masters else 0)
    return max(update - (0 if f.full else gradients(f)), part * (f.factor_bytes + 4))
