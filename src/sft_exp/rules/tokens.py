"""Rules about added tokens."""

from collections.abc import Iterator

from sft_exp.schema import AdapterKind, Experiment


def problems(experiment: Experiment) -> Iterator[str]:
    """One sentence for each field of the added tokens that cannot be right."""
    model = experiment.model
    if len(set(model.special_tokens)) < len(model.special_tokens) or not all(model.special_tokens):
        yield f"model.special_tokens={model.special_tokens} holds an empty or repeated token: list each once."
    for token, text in model.token_descriptions.items():
        if token not in model.special_tokens:
            yield f"model.token_descriptions describes {token}, which is not in model.special_tokens: add it there."
        elif not text.strip():
            yield f"model.token_descriptions.{token} is empty: give a few words, or leave it out."
    kind = experiment.adapter.kind
    if model.special_tokens and kind is not AdapterKind.full and experiment.zero.stage == 3:
        yield (
            f"model.special_tokens with adapter={kind.value} cannot be trained under zero=3, whose split "
            "head TRL's loss does not find behind PEFT's rows: use zero=2."
        )
    if model.train_special_tokens:
        return
    if not model.special_tokens:
        yield "model.train_special_tokens=false has no effect without model.special_tokens: remove it."
    if kind is AdapterKind.full:
        yield (
            "model.train_special_tokens=false is not possible with adapter=full, which trains all rows: use "
            "adapter=lora or qlora."
        )


def warnings(experiment: Experiment) -> Iterator[str]:
    """One sentence if the rows are left untrained on purpose."""
    if not experiment.model.train_special_tokens:
        yield (
            "model.train_special_tokens=false leaves the rows of model.special_tokens as they start, so the model "
            "can hardly learn to write these tokens."
        )
