"""What differs between runs: the question itself, what follows from it, and what should not differ."""

import dataclasses
from collections.abc import Sequence

from sft_exp.compare.facts import SEED, Facts

OF_THE_FOLDER = ("name", "outputs", "resume", "tracking.", "hw.devices", "hw.threads", "sweep.")
"""Keys that name a run or its place, or how its sweep is run, and change nothing that is compared."""
DERIVED = {"train.micro_batch": "train.global_batch"}
"""What a run works out itself where it is not typed -> of what."""
LAUNCH = ("hydra.", "hydra/", "sweep")
DATA = "data fingerprint"
LONGEST = 160
"""Characters of values that are shown."""
TOKENS_TOLERANCE = 0.01
"""Largest share by which the tokens that runs have seen may differ before their losses are no comparison."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """One thing that is not the same in all runs; `values` are those of the runs, in their order."""

    key: str
    kind: str
    """`question`: was varied on purpose; `follows`: the configuration made it of the question; `beyond`: neither."""
    values: tuple[str, ...]

    @property
    def told(self) -> str:
        """The distinct values for people, cut where there are many."""
        text = ", ".join(dict.fromkeys(value or "none" for value in self.values))
        return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def factors(runs: Sequence[Facts]) -> list[str]:
    """Keys that were typed with several values, the seed left out: the variables of the question."""
    typed = dict.fromkeys(key for run in runs for key in run.typed if not key.startswith(LAUNCH))
    varied = [key for key in typed if len({run.value(key) for run in runs}) > 1]
    return [key for key in varied if key != SEED and not key.startswith(OF_THE_FOLDER)]


def differences(runs: Sequence[Facts]) -> list[Difference]:
    """All differences, the question first."""
    asked = factors(runs)
    found = [Difference(key, "question", tuple(run.value(key) for run in runs)) for key in asked]
    if len({run.value(SEED) for run in runs}) > 1:
        found.append(Difference(SEED, "question", tuple(run.value(SEED) for run in runs)))
    one_sweep = len({run.request.get("parent_run_id") or str(run.run.path.parent) for run in runs}) == 1
    for key in dict.fromkeys(key for run in runs for key in run.config):
        if key not in (*asked, SEED) and not key.startswith(OF_THE_FOLDER):
            kind = "follows" if _follows(key, asked) or one_sweep else "beyond"
            found += _differing(key, kind, [run.value(key) for run in runs])
    identities = [run.identity() for run in runs]
    for key in dict.fromkeys(key for identity in identities for key in identity):
        values = [identity.get(key, "none") for identity in identities]
        kind = "follows" if _is_asked(key, asked) or (key == DATA and _of_the_question(runs, values)) else "beyond"
        found += _differing(key, kind, values)
    return found


def _differing(key: str, kind: str, values: list[str]) -> list[Difference]:
    return [Difference(key, kind, tuple(values))] if len(set(values)) > 1 else []


def _follows(key: str, asked: Sequence[str]) -> bool:
    """Whether a key belongs to a group that was varied, or any may, because a whole experiment was."""
    of_group = any(key.startswith((f"{name}.", f"{name}/")) for name in asked)
    return of_group or "experiment" in asked or DERIVED.get(key) in asked


def _is_asked(identity: str, asked: Sequence[str]) -> bool:
    """Whether what should be equal is itself the question, such as the batch."""
    parts = {
        "ranks": ("hw", "hw.processes"),
        "global batch": ("train.global_batch", "train"),
        "machine": ("hw", "hw.device"),
    }
    return any(name in asked for name in parts.get(identity, ()))


@dataclasses.dataclass(frozen=True)
class Objection:
    """Why a comparison is none: of any metric, or only of those that are means over tokens."""

    text: str
    tokens_only: bool = False


PER_TOKEN = ("loss", "token_accuracy", "entropy", "grad_norm", "p_eos")
"""Ends of the names of metrics that are means over the tokens of the data, so that other data changes their meaning."""


def per_token(metric: str) -> bool:
    """Whether a metric is a mean over the data's tokens."""
    return metric.endswith(PER_TOKEN)


def objections(runs: Sequence[Facts]) -> list[Objection]:
    """Why these runs cannot be compared, or their losses cannot; none if they can."""
    found = [*_other_data(runs), *_other_amount(runs)]
    if unfinished := [run.name for run in runs if run.state != "finished"]:
        found.append(Objection(f"{len(unfinished)} of {len(runs)} have not finished, such as {unfinished[0]}."))
    return found


def _other_data(runs: Sequence[Facts]) -> list[Objection]:
    known = [run for run in runs if run.data]
    if len(prints := {run.data.get("fingerprint") for run in known}) < 2:
        return []
    asked = _of_the_question(known, [str(run.data.get("fingerprint")) for run in known])
    why = "as was asked" if asked else "dataset, split, tokenizer, template or max_length differ"
    return [
        Objection(
            f"they were trained and evaluated on {len(prints)} different preparations of data ({why}), so their losses "
            "are means over other tokens.",
            tokens_only=asked,
        )
    ]


def _other_amount(runs: Sequence[Facts]) -> list[Objection]:
    known = [run for run in runs if run.tokens_seen is not None and run.state == "finished"]
    seen = [run.tokens_seen or 0 for run in known]
    if not seen or max(seen) - min(seen) <= TOKENS_TOLERANCE * max(seen):
        return []
    # The same rows in other tokens are the same amount of work; other numbers of rows are not.
    rows = {str(run.rows[-1].get("step")) + run.value("train.global_batch") for run in known}
    advice = "give all the same train.max_steps and batch, or read the curves, which are drawn by tokens."
    text = f"they have seen different numbers of tokens, {min(seen):,} to {max(seen):,}: {advice}"
    asked = len(rows) == 1 and _of_the_question(known, [str(n // 100) for n in seen], SEED)
    return [Objection(text, tokens_only=asked)]


def _of_the_question(runs: Sequence[Facts], values: Sequence[str], *more: str) -> bool:
    """Whether runs of one setting, and of one value of the keys in `more`, agree: then what was varied decides.

    The seed draws other rows in a part of an epoch, so that as many rows have other numbers of tokens.
    """
    asked = [*factors(runs), *more]
    settings: dict[tuple[str, ...], set[str]] = {}
    for run, value in zip(runs, values, strict=True):
        settings.setdefault(tuple(run.value(key) for key in asked), set()).add(value)
    return all(len(found) == 1 for found in settings.values())
