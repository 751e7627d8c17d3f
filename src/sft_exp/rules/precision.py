"""Rules about number formats and attention."""

from collections.abc import Iterator

from sft_exp.hw import BF16_CAPABILITY, attention_problem
from sft_exp.schema import AdapterKind, Attention, Device, Dtype, Experiment, Precision


def problems(experiment: Experiment) -> Iterator[str]:
    """One sentence for each combination that would be wrong, or slow in silence."""
    hw, precision = experiment.hw, experiment.train.precision
    capability = hw.capability
    if (
        precision is Precision.bf16
        and hw.device is Device.cuda
        and capability is not None
        and capability < BF16_CAPABILITY
    ):
        yield (
            f"train.precision=bf16 is only emulated on hw={hw.name} (compute capability {capability}): use "
            "train.precision=fp16."
        )
    if precision is Precision.fp16 and hw.device is Device.cpu:
        yield (
            "train.precision=fp16 needs an NVIDIA GPU (on the CPU it runs without loss scaling and diverges): use "
            "fp32 or bf16."
        )
    kind = experiment.model.attention
    if reason := attention_problem(kind, hw, precision):
        yield f"model.attention={kind.value} cannot run here: {reason}; use model.attention=sdpa."
    if experiment.model.attention is Attention.flex_attention and hw.device is Device.cpu:
        yield "model.attention=flex_attention has no backward pass on the CPU: use model.attention=sdpa."
    dtype, full = experiment.model.dtype, experiment.adapter.kind is AdapterKind.full
    if precision is Precision.fp16 and dtype is Dtype.float16 and full and experiment.zero.stage == 0:
        yield (
            "model.dtype=float16 with train.precision=fp16 cannot unscale its gradients: use model.dtype=float32 or "
            "zero=2."
        )
