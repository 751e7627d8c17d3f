"""What lives as long as the run: weights, fp32 copies, optimizer state, gradients and DeepSpeed's buffers, per GPU.

P parameters, T trained ones, N ranks. Read in torch, accelerate and deepspeed 0.19 (runtime/zero/stage_1_and_2.py,
stage3.py).
"""

from sft_exp.memory_facts import Facts, optimizer_bytes
from sft_exp.schema import AdapterKind

NF4_BYTES = 0.5 + 4 / 64
"""4-bit value and one fp32 constant for 64 of them (bitsandbytes)."""
NF4_DOUBLE_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""The constants in 8 bit, with an fp32 constant for 256 of those."""
LIVE_PARAMETERS = 1_000_000_000
"""stage3_max_live_parameters: gathered values that are kept for reuse."""
SUB_GROUP = 1_000_000_000
"""Values that stage 3 updates at a time (sub_group_size)."""


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


def gathered(f: Facts) -> float:
    """Stage 3: weights put together for use. One rank uses its own without a copy unless they come from the host."""
    if f.stage < 3 or (f.ranks == 1 and not f.offload_param):
        return 0
    return float(min(f.parameters, LIVE_PARAMETERS) * f.weight_bytes)


def factors(f: Facts) -> float:
    """Weights of the adapter."""
    if f.full or f.offload_param:
        return 0
    return f.trained * f.factor_bytes / (f.ranks if f.stage == 3 else 1)


def master(f: Facts) -> float:
    """DeepSpeed's fp32 copies of what is trained, 4T/N; plain torch has none."""
    return 4.0 * f.trained / f.ranks if f.stage > 0 and not f.offload_optimizer else 0


def optimizer(f: Facts) -> float:
    """Moments: 8T for Adam in fp32, 8T/N from stage 1 on, in host memory with offload."""
    return 0 if f.offload_optimizer else optimizer_bytes(f) * f.trained / shards(f)


def gradients(f: Facts) -> float:
    """Gradients when a backward pass has ended: whole below stage 2, T/N from there on, in host memory with offload."""
    if f.stage > 0 and f.offload_optimizer:
        return 0
    return f.trained * f.factor_bytes / (f.ranks if f.stage >= 2 else 1)


def always_gradients(f: Facts) -> float:
    """Gradients that are there when the backward pass begins: those of earlier passes, or stage 3's fixed buffer."""
    return gradients(f) if f.accumulates or f.stage == 3 else 0


def reducers(f: Facts) -> float:
    """DistributedDataParallel's buckets: a second copy of the gradients (`gradient_as_bucket_view` is off)."""
    return float(f.trained * f.factor_bytes) if f.stage == 0 and f.ranks > 1 else 0


def fixed_buckets(f: Facts) -> float:
    """DeepSpeed buffers that are always there: stage 3's reduce bucket; the largest gradient on its way to the host."""
    bucket = f.reduce_bucket * f.factor_bytes if f.stage == 3 else 0
    largest = f.head if f.full else f.hidden * 64
    way = largest * f.factor_bytes if f.stage > 0 and f.offload_optimizer else 0
    return float(bucket + way)


def backward_buckets(f: Facts) -> float:
    """Stages 1 and 2 fill two reduce buckets in turn (overlap_comm), from the first gradient on."""
    return 2.0 * f.reduce_bucket * f.factor_bytes if f.stage in (1, 2) else 0


def step_copies(f: Facts) -> float:
    """DeepSpeed's step: gradients flattened in 16 bit, then in fp32; the 16-bit ones are freed before the update."""
    if f.stage == 0 or f.offload_optimizer:
        return 0
    part = f.trained / f.ranks
    return 4.0 * (min(part, SUB_GROUP) if f.stage == 3 else part)
