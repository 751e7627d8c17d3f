"""The memory plan: what a run needs per GPU and of the host, by component, and whether it fits.

A step has moments at which memory peaks: the loss, its backward pass, that of the last and the first layer and of the
embedding, and the optimizer's step. Each is a sum of components; the plan is the largest of them.
"""

from dataclasses import dataclass
from enum import Enum

from sft_exp import memory_activations as activations
from sft_exp import memory_host, memory_states
from sft_exp.memory_facts import Facts, facts
from sft_exp.schema import Device, Experiment

GIB = 2**30
ERROR = 0.05
"""Largest error of the plan on the points of the same program, rounded up (docs/memory.md)."""
SLACK = 0.03
"""Share that torch's allocator may hold and not be able to use: assumed (docs/memory.md)."""
CONTEXT_GIB = 0.75
"""CUDA context, kernels and NCCL in one process, outside torch's count (measured on an H200)."""
WORKSPACE_GIB = 0.066
"""cuBLAS workspaces, which torch counts (measured on an H200; smaller on older cards)."""


class Verdict(Enum):
    """Answer of a plan, with the error of the plan itself taken into account."""

    fits = "fits"
    tight = "tight"
    too_large = "does not fit"
    unknown = "unknown"


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes at the peak of one GPU and of the host, by component."""

    parts: dict[str, float]
    """What torch allocates on each GPU at the peak."""
    moment: str
    """When the peak is."""
    host: dict[str, float]
    """Host memory of all ranks together."""
    memory_gib: float | None
    """Memory of one card."""

    @property
    def allocated_gib(self) -> float:
        """Peak of torch's own count, which a run measures as `peak_memory_gib`."""
        return sum(self.parts.values()) / GIB

    @property
    def total_gib(self) -> float:
        """Peak of the card: what torch allocates and what CUDA takes."""
        return self.allocated_gib + CONTEXT_GIB

    @property
    def host_gib(self) -> float:
        """Host memory of all ranks."""
        return sum(self.host.values()) / GIB

    @property
    def verdict(self) -> Verdict:
        """Fits: also if the plan is too low by its error, with slack. Does not fit: also if it is too high by it."""
        if self.memory_gib is None:
            return Verdict.unknown
        if self.allocated_gib * (1 + ERROR + SLACK) + CONTEXT_GIB <= self.memory_gib:
            return Verdict.fits
        if self.allocated_gib * (1 - ERROR) + CONTEXT_GIB > self.memory_gib:
            return Verdict.too_large
        return Verdict.tight


def plan(experiment: Experiment) -> MemoryPlan | None:
    """Plan of a resolved experiment; None on the CPU and for architectures that are not known."""
    f = facts(experiment)
    if f is None or experiment.hw.device is not Device.cuda:
        return None
    moments = _moments(f)
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    parts = {name: size for name, size in {**_fixed(f), **moments[moment]}.items() if size > 0}
    host = memory_host.host(experiment, f)
    return MemoryPlan(parts, moment, host, experiment.hw.memory_gib)


def _fixed(f: Facts) -> dict[str, float]:
    """Components that are there all the time."""
    return {
        "weights": memory_states.weights(f) + memory_states.gathered(f),
        "adapter": memory_states.factors(f),
        "master copies": memory_states.master(f),
        "optimizer": memory_states.optimizer(f),
        "gradients": memory_states.always_gradients(f),
        "activations": 0.0,
        "logits and loss": 0.0,
        "gradient buckets": memory_states.reducers(f) + memory_states.fixed_buckets(f),
        "optimizer step": 0.0,
        "cuBLAS workspace": WORKSPACE_GIB * GIB,
    }


def _moments(f: Facts) -> dict[str, dict[str, float]]:
    """Peaks of one step: moment -> components that differ from `_fixed`, which is the whole where nothing does."""
    working = activations.layer_working(f)
    recomputed = activations.layer_kept(f) + activations.cast_weights(f) / f.layers if f.checkpointing else 0.0
    buckets = memory_states.fixed_buckets(f) + memory_states.reducers(f) + memory_states.backward_buckets(f)
    differing = {
        "the loss": {
            "activations": activations.kept(f) + (activations.cast_weights(f) if f.checkpointing else 0),
            "logits and loss": activations.loss_forward(f),
        },
        "the loss, backward": {
            "activations": activations.kept(f), "logits and loss": activations.loss_backward(f),
        },
        "the last layer, backward": {
            "activations": activations.kept(f) + recomputed + working,
            "logits and loss": _head_gradient(f),
            "gradient buckets": buckets,
        },
        "the first full bucket": {
            "activations": activations.kept(f) * _layers_left(f) + recomputed + working,
            "logits and loss": _head_gradient(f),
            "gradients": memory_states.reduced_gradients(f),
            "gradient buckets": buckets,
        },
        "the first layer, backward": {
            "activations": _first_layer(f) + working,
            "gradients": _gradients_before_first_layer(f),
            "gradient buckets": buckets,
        },
        "the embedding, backward": {
            "gradients": memory_states.reduced_gradients(f) if f.stage else memory_states.gradients(f),
            "gradient buckets": buckets + _embedding_gradient(f),
        },
        "the largest gradient, to the host": {
            "weights": memory_states.weights(f) + memory_states.gathered(f, f.head if f.tied else None),
            "activations": activations.kept(f) if f.full and not f.tied else 0,
            "gradient buckets": buckets + memory_states.to_host(f),
        },
        "the optimizer step": {
            "gradients": memory_states.gradients(f), "optimizer step": memory_states.step(f),
        },
    }  # fmt: skip
    return {name: {**_fixed(f), **parts} for name, parts in differing.items()}


def _head_gradient(f: Facts) -> float:
    """Gradient of the head that waits: for the embedding's if they are one matrix, else as the first one there is."""
    return float(f.head * f.weight_bytes) if f.full and (f.tied or not f.accumulates) else 0


def _layers_left(f: Facts) -> float:
    """Share of the layers whose backward pass is still to come when a reduce bucket is full for the first time."""
    if f.stage not in (1, 2):
        return 1
    before = 0 if f.tied or not f.full else f.head
    trained = f.layer if f.full else f.trained // f.layers
    return max(0, f.layers - max(0, f.reduce_bucket - before) // trained) / f.layers


def _first_layer(f: Facts) -> float:
    """Activations when only the first layer's are left, recomputed if they are checkpointed, and its input."""
    casts = activations.cast_weights(f) / f.layers
    return activations.layer_kept(f) + casts + activations.residual(f)


def _gradients_before_first_layer(f: Facts) -> float:
    """All gradients but the first layer's and the embedding's; with accumulation those of earlier passes are there."""
    if f.stage in (1, 2):
        return memory_states.reduced_gradients(f)
    total = memory_states.gradients(f)
    if not f.full or f.stage == 3:
        return total
    if f.accumulates:
        return total + (_head_gradient(f) if f.tied else 0)
    return total - f.layer * f.weight_bytes - (0 if f.tied else f.head * f.weight_bytes)


def _embedding_gradient(f: Facts) -> float:
    """The embedding's gradient is dense and new, and is added to the head's if tied.

    At stage 0 it is counted as a gradient already, unless it is added to that of earlier passes. DeepSpeed has its
    gradients elsewhere.
    """
    if not f.full:
        return 0
    return float(f.head * f.weight_bytes * (int(f.tied) + int(f.accumulates or f.stage > 0)))
