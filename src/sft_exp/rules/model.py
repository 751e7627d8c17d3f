"""Rules about the model."""

import re
from collections.abc import Iterator
from pathlib import Path

from sft_exp import checkpoint, sizes
from sft_exp.rules import shape
from sft_exp.schema import TRAINING_TEMPLATE, AdapterKind, Experiment, Weights

UNQUANTIZABLE = "model.weights=random with adapter=qlora cannot be built under zero=3: use zero=2, or adapter=lora."
FILES = (
    checkpoint.weights_problem, checkpoint.name_problem, checkpoint.tokenizer_problem, checkpoint.gguf_problem,
)  # fmt: skip
"""What can be said about the model's files without the hub."""


def problems(experiment: Experiment) -> Iterator[str]:
    """One sentence for each reason why the model cannot be built."""
    model = experiment.model
    if model.path is None and model.gguf is None and model.weights is Weights.pretrained:
        yield "the model has neither path nor weights=random: set model.path=FOLDER_OR_HUB_ID."
    if model.weights is Weights.random and (missing := sizes.missing(model.shape)):
        yield (
            f"model.weights=random needs the architecture's numbers: set model.shape.{missing[0]} ({len(missing)} "
            "missing)."
        )
    if model.weights is Weights.random and model.path and checkpoint.looks_local(model.path):
        yield f"model.path={model.path} would not be read with model.weights=random: set model.weights=pretrained."
    yield from shape.problems(model)
    if model.weights is Weights.random and experiment.adapter.kind is AdapterKind.qlora and experiment.zero.stage == 3:
        yield UNQUANTIZABLE
    for problem in FILES:
        if sentence := problem(model):
            yield sentence
    own = model.chat_template if model.chat_template != TRAINING_TEMPLATE else None
    if own and not Path(own).is_file():
        yield f"model.chat_template={model.chat_template} is not there: give a jinja file, or training."
    if model.trust_remote_code and not re.fullmatch(r"[0-9a-f]{40}", model.revision or ""):
        yield (
            "model.trust_remote_code=true runs code from the hub, which may change under "
            f"model.revision={model.revision}: "
            f"pin it with model.revision=COMMIT (40 hexadecimal digits)."
        )
