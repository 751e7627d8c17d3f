"""Host memory of all ranks of one machine: processes, loading, and what offload keeps there."""

from sft_exp.memory_facts import Facts
from sft_exp.memory_states import base_weights
from sft_exp.schema import AdapterKind, Experiment, Weights

PROCESS_BYTES = 3 * 2**30
"""Resident memory of one rank with torch, CUDA's libraries and transformers, and of the parent's share."""


def host(experiment: Experiment, f: Facts) -> dict[str, float]:
    """Bytes by component; loading ends before offloaded state is made, so only the larger of both counts."""
    state = offloaded(f)
    loading = f.local * _loading(experiment, f)
    kind = "pinned" if experiment.zero.pin_memory else "pageable"
    parts = {"processes": float(f.local * PROCESS_BYTES)}
    if state:
        parts[f"offloaded state, {kind}"] = state
    if loading > state:
        parts["loading"] = loading - state
    return parts


def offloaded(f: Facts) -> float:
    """Bytes of optimizer state and parameters that offload keeps there, over the ranks of one machine."""
    return f.local * (_optimizer(f) + _parameters(f))


def _optimizer(f: Facts) -> float:
    """Offloaded optimizer per rank: fp32 copy, moments and gradient (16T/N), a 16-bit copy, square roots in the step.

    DeepSpeed's own estimate is 16 to 24 bytes per value (runtime/zero/stage_1_and_2.py,
    `estimate_zero2_model_states_mem_needs`).
    """
    return 22.0 * f.trained / f.ranks if f.offload_optimizer else 0


def _parameters(f: Facts) -> float:
    """Offloaded parameters per rank: the 16-bit shards."""
    return base_weights(f) / f.ranks if f.offload_param else 0


def _loading(experiment: Experiment, f: Facts) -> float:
    """Weights read into host memory by every rank before they go to the card.

    Stage 3 keeps shards only, quantised weights go to the card one by one, drawn ones are made there.
    """
    drawn = experiment.model.weights is Weights.random
    return 0 if drawn or f.stage == 3 or f.kind is AdapterKind.qlora else float(f.parameters * f.weight_bytes)
