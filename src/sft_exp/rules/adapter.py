"""Rules about what is trained."""

import importlib.util
from collections.abc import Iterator

from sft_exp import targets
from sft_exp.schema import AdapterKind, Experiment


def problems(experiment: Experiment) -> Iterator[str]:
    """One sentence for each field that is missing, useless or out of range."""
    adapter, kind = experiment.adapter, experiment.adapter.kind
    used = {
        AdapterKind.full: (),
        AdapterKind.lora: ("r", "alpha", "dropout", "target_modules"),
        AdapterKind.qlora: ("r", "alpha", "dropout", "target_modules", "quant_type", "double_quant"),
    }[kind]
    for key in ("r", "alpha", "dropout", "target_modules", "quant_type", "double_quant"):
        value = getattr(adapter, key)
        if key in used and value is None:
            yield f"adapter={kind.value} needs adapter.{key}."
        if key not in used and value is not None:
            yield (
                f"adapter.{key}={value} has no effect with adapter={kind.value}: remove it, or use adapter=lora or "
                "qlora."
            )
    for key in ("r", "alpha"):
        value = getattr(adapter, key)
        if value is not None and value < 1:
            yield f"adapter.{key}={value} must be at least 1."
    known = targets.LINEAR.get(experiment.model.shape.model_type or "", ())
    if kind is not AdapterKind.full and (sentence := targets.problem(adapter, known)):
        yield sentence
    if adapter.dropout is not None and not 0 <= adapter.dropout < 1:
        yield f"adapter.dropout={adapter.dropout} must be at least 0 and below 1."
    if adapter.quant_type not in (None, "nf4", "fp4"):
        yield f"adapter.quant_type={adapter.quant_type} is not possible: use nf4 or fp4."
    if kind is AdapterKind.qlora and importlib.util.find_spec("bitsandbytes") is None:
        yield "adapter=qlora needs the package bitsandbytes: pip install bitsandbytes."
