"""The cheapest changes that make a run fit, each proved by planning it again, with its price."""

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from sft_exp import memory, resolve
from sft_exp.memory import MemoryPlan, Verdict
from sft_exp.schema import Adapter, AdapterKind, Dtype, Experiment, Train, Zero

LORA = Adapter(kind=AdapterKind.lora, r=16, alpha=32, dropout=0.0, target_modules="all-linear")
QLORA = dataclasses.replace(LORA, kind=AdapterKind.qlora, quant_type="nf4", double_quant=True)
"""conf/adapter/lora.yaml and qlora.yaml; a test compares them."""
FOREACH, FUSED = "adamw_torch", "adamw_torch_fused"
FUSED_PRICE = "the same update in one kernel; steps that fp16 skips are not counted"
SMALLER_MICRO, CHECKPOINTING = 1.05, 1.33
"""How many times slower: per halving of the micro batch, and recomputing activations."""


@dataclass(frozen=True)
class Change:
    """One thing to change: what is typed, what it costs, and how many times slower it is reckoned, for the order only.

    What trains something else counts as so many times slower, so that it comes after what only costs a little time.
    """

    words: str
    price: str
    cost: float


@dataclass(frozen=True)
class Advice:
    """A change of the run that fits."""

    changes: tuple[Change, ...]
    plan: MemoryPlan

    def __str__(self) -> str:
        words = " ".join(change.words for change in self.changes)
        price = "; ".join(change.price for change in self.changes)
        host = f", {self.plan.host_gib:.0f} GiB of host memory" if "offload" in words else ""
        return f"{words} ({self.plan.total_gib:.1f} GiB{host}: {price})"

    @property
    def cost(self) -> float:
        """Product of the changes' costs."""
        product = 1.0
        for change in self.changes:
            product *= change.cost
        return product


Step = tuple[tuple[Change, ...], Experiment]


def advise(experiment: Experiment, limit: int = 4) -> list[Advice]:
    """Changes that fit, cheapest first: for each way to train, the cheapest setting of the loop that fits."""
    found = [advice for step in _ways(experiment) if (advice := _cheapest(step)) is not None and advice.changes]
    return sorted(found, key=lambda advice: advice.cost)[:limit]


def _cheapest(step: Step) -> Advice | None:
    changes, experiment = step
    options = [
        Advice(changes + more, planned)
        for more, changed in _loops(experiment)
        if (planned := memory.plan(changed)) is not None and planned.verdict is Verdict.fits
    ]
    return min(options, key=lambda advice: (advice.cost, len(advice.changes)), default=None)


def _ways(experiment: Experiment) -> Iterator[Step]:
    """The run as it is, with more sharding, with an adapter, with offload."""
    yield (), experiment
    zero, full = experiment.zero, experiment.adapter.kind is AdapterKind.full
    if experiment.hw.ranks > 1:
        for stage, cost, price in (
            (2, 1.1, "gradients and optimizer sharded, about 5 % slower"),
            (3, 2.0, "weights sharded too, about half the speed"),
        ):
            if zero.stage < stage:
                yield _with_zero(experiment, Zero(stage=stage), f"zero={stage}", price, cost)
    kind = experiment.adapter.kind
    if kind is AdapterKind.full:
        yield _with_adapter(experiment, LORA, "another result: only small factors are trained; raise the rate", 2.5)
    if kind is not AdapterKind.qlora and zero.stage < 3:
        yield _with_adapter(experiment, QLORA, "another result: factors over 4-bit weights, a quarter slower", 3.5)
    if full and not zero.offload_optimizer and zero.stage < 3:
        price = "the optimizer runs on the CPU, several times slower"
        yield _with_zero(experiment, Zero(stage=2, offload_optimizer=True), "zero=2_offload", price, 4.0)
    if not zero.offload_param:
        price = "weights come from host memory at each pass, many times slower"
        offload = Zero(stage=3, offload_optimizer=True, offload_param=True)
        yield _with_zero(experiment, offload, "zero=3_offload", price, 8.0)


def _loops(experiment: Experiment) -> Iterator[Step]:
    """Settings of the training loop that give the same result: fused optimizer, smaller micro batch, checkpointing."""
    train = experiment.train
    micro = train.micro_batch or 1
    fused = [False, True] if train.optimizer == FOREACH else [False]
    smaller = [size for size in range(micro, 0, -1) if micro % size == 0]
    checkpointing = [False, True] if not train.gradient_checkpointing else [False]
    for fuse, size, recompute in itertools.product(fused, smaller, checkpointing):
        changes: list[Change] = []
        changed: Train = train
        if fuse:
            changes.append(Change(f"train.optimizer={FUSED}", FUSED_PRICE, 1.001))
            changed = dataclasses.replace(changed, optimizer=FUSED)
        if size < micro:
            cost = SMALLER_MICRO ** ((micro // size).bit_length() - 1)
            price = f"{micro // size} times as many passes, the same batch, a little slower"
            changes.append(Change(f"train.micro_batch={size}", price, cost))
            changed = dataclasses.replace(changed, micro_batch=size)
        if recompute:
            changes.append(Change("train.gradient_checkpointing=true", "about a third slower", CHECKPOINTING))
            changed = dataclasses.replace(changed, gradient_checkpointing=True)
        yield tuple(changes), dataclasses.replace(experiment, train=changed)


def _with_zero(experiment: Experiment, zero: Zero, words: str, price: str, cost: float) -> Step:
    old = experiment.zero
    kept = dataclasses.replace(
        zero, pin_memory=old.pin_memory, reduce_bucket_size=old.reduce_bucket_size,
        allgather_bucket_size=old.allgather_bucket_size,
    )  # fmt: skip
    return (Change(words, price, cost),), _retyped(experiment, dataclasses.replace(experiment, zero=kept))


def _with_adapter(experiment: Experiment, adapter: Adapter, price: str, cost: float) -> Step:
    changed = dataclasses.replace(experiment, adapter=adapter)
    return (Change(f"adapter={adapter.kind.value}", price, cost),), _retyped(experiment, changed)


def _retyped(before: Experiment, after: Experiment) -> Experiment:
    """Type of the weights and optimizer that `auto` takes for the changed run, unless others had been asked for."""
    precision = before.train.precision
    old, new = _automatic(before), _automatic(after)
    model, train = after.model, after.train
    if resolve.dtype(old, precision) is before.model.dtype:
        model = dataclasses.replace(model, dtype=resolve.dtype(new, precision))
    if resolve.optimizer(old, precision) == before.train.optimizer:
        train = dataclasses.replace(train, optimizer=resolve.optimizer(new, precision))
    return dataclasses.replace(after, model=model, train=train)


def _automatic(experiment: Experiment) -> Experiment:
    """The experiment with `auto` where it decides."""
    model = dataclasses.replace(experiment.model, dtype=Dtype.auto)
    train = dataclasses.replace(experiment.train, optimizer=resolve.AUTO)
    return dataclasses.replace(experiment, model=model, train=train)
