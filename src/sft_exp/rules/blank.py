"""Rule about texts that hold nothing: `model.path=` in a script whose variable is not set."""

from collections.abc import Iterator

from sft_exp.request import flatten, to_plain
from sft_exp.schema import Experiment

OWN = ("dataset.path",)
"""Fields whose own rules say it."""


def problems(experiment: Experiment) -> Iterator[str]:
    """One sentence for each optional text that is empty where null was meant."""
    given = flatten(to_plain(experiment))
    for key, default in flatten(to_plain(Experiment())).items():
        value = given.get(key)
        if default is None and isinstance(value, str) and not value.strip() and key not in OWN:
            yield f"{key}= is empty: give a value, write {key}=null, or leave it out."
