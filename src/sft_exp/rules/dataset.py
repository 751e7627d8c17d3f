"""Rules about the data that need no row to be read."""

from collections.abc import Iterator

from sft_exp import rows
from sft_exp.errors import ConfigError
from sft_exp.schema import DatasetKind, Experiment


def problems(experiment: Experiment) -> Iterator[str]:
    """One sentence for each reason why the rows cannot be read as asked."""
    dataset = experiment.dataset
    if dataset.path is None:
        what = "an id such as ORG/NAME" if dataset.kind is DatasetKind.hub else "a file, folder or glob"
        yield f"the dataset has no path: set dataset.path to {what}."
    elif dataset.kind is DatasetKind.files:
        try:
            rows.find_files(dataset.path)
        except ConfigError as error:
            yield from error.problems
    if dataset.max_length < 2:
        yield f"dataset.max_length={dataset.max_length} must be at least 2."
    longest = experiment.model.shape.max_position_embeddings
    if longest and dataset.max_length > longest:
        yield (
            f"dataset.max_length={dataset.max_length} is more than the model's {longest} positions: use {longest} or "
            "less."
        )
    for key in ("eval_fraction", "max_bad_fraction"):
        value = getattr(dataset, key)
        if not 0 <= value <= 1 or (key == "eval_fraction" and value == 1):
            yield f"dataset.{key}={value} must be a share between 0 and 1."
    for key in ("limit", "num_proc"):
        value = getattr(dataset, key)
        if value is not None and value < 1:
            yield f"dataset.{key}={value} must be at least 1."
