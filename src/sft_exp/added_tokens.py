"""What the data says about added tokens, and about the control tokens of a base model, before the first step."""

from collections.abc import Iterator
from pathlib import Path

from sft_exp.prepared import Prepared
from sft_exp.schema import AdapterKind, Experiment, Model


def count(folder: Path, model: Model) -> dict[str, dict[str, int]]:
    """How often each of `model.special_tokens` is in the prepared training rows, and in their trained part."""
    if not model.special_tokens:
        return {}
    import numpy as np

    from sft_exp import dataset, tokenizer

    loaded = tokenizer.load_tokenizer(model, preparing=True)
    ids = {token: loaded.convert_tokens_to_ids(token) for token in model.special_tokens}
    counts = {token: {"there": 0, "trained": 0} for token in ids}
    table = dataset.load(folder, "train").data
    for name, column in (("there", "input_ids"), ("trained", "labels")):
        for chunk in table.column(column).chunks:
            values = chunk.flatten().to_numpy()
            for token, number in ids.items():
                counts[token][name] += int(np.count_nonzero(values == number))
    return counts


def problems(report: Prepared) -> Iterator[str]:
    """One sentence for each token that is nowhere in the data; of a stream only the first rows are known."""
    missing = [token for token, times in report.added_tokens.items() if not times["there"]]
    if missing and not report.streamed:
        yield (
            f"model.special_tokens: {', '.join(missing)} is in no training row of {report.source}, so the model cannot "
            "learn it: write it into the data, or take it from the list."
        )


def base_model(report: Prepared, experiment: Experiment) -> str:
    """What to do if the checkpoint looks like a base model whose control tokens an adapter would leave untrained.

    A base model ends a text with one token and its chat template a turn with another; of such checkpoints it is known
    that the rows of the template's tokens may be as they were drawn. Whether they are cannot be told from the weights.
    """
    kind, listed = experiment.adapter.kind, experiment.model.special_tokens
    untrained = [token for token in report.control_tokens if token not in listed]
    looks_base = report.end_token is not None and report.text_end not in ("", report.end_text)
    if kind is AdapterKind.full or not looks_base or not untrained:
        return ""
    names = ",".join(f'"{token}"' for token in [*listed, *untrained])
    return (
        f"this looks like a base model: its tokenizer ends a text with {report.text_end}, its chat template a turn "
        f"with {report.end_text}. The rows of {', '.join(untrained)} may never have been trained, and "
        f"adapter={kind.value} leaves them as they are; if answers do not stop, train them "
        f"too: 'model.special_tokens=[{names}]'"
    )
