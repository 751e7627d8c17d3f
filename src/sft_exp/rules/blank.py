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
        if not isinstance(value, str) or value.strip() or key in OWN:
            continue
        if default is None:
            yield f"{key}= is empty: give a value, write {key}=null, or leave it out."
        elif key == "outputs":
            yield "outputs= is empty: give a folder, such as outputs=. for the current one, or leave it out."
