"""What differs between runs: the question itself, what follows from it, and what should not differ."""

import dataclasses
from collections.abc import Sequence

from sft_exp.compare.facts import SEED, Facts

OF_THE_FOLDER = ("name", "outputs", "resume", "tracking.", "hw.devices", "hw.threads")
"""Keys that name a run or its place, and change nothing that is compared."""
LAUNCH = ("hydra.", "hydra/", "sweep")
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
        kind = "follows" if _is_asked(key, asked) else "beyond"
        found += _differing(key, kind, [identity.get(key, "none") for identity in identities])
    return found


def _differing(key: str, kind: str, values: list[str]) -> list[Difference]:
    return [Difference(key, kind, tuple(values))] if len(set(values)) > 1 else []


def _follows(key: str, asked: Sequence[str]) -> bool:
    """Whether a key belongs to a group that was varied, or any may, because a whole experiment was."""
    return any(key.startswith((f"{name}.", f"{name}/")) for name in asked) or "experiment" in asked


def _is_asked(identity: str, asked: Sequence[str]) -> bool:
    """Whether what should be equal is itself the question, such as the batch."""
    parts = {
        "ranks": ("hw", "hw.processes"),
        "global batch": ("train.global_batch", "train"),
        "machine": ("hw", "hw.device"),
    }
    return any(name in asked for name in parts.get(identity, ()))


def objections(runs: Sequence[Facts]) -> list[str]:
    """Why the losses of these runs cannot be ranked: one sentence each, none if they can."""
    found = []
    if len(prints := {run.data.get("fingerprint") for run in runs if run.data}) > 1:
        found.append(
            f"they were trained and evaluated on {len(prints)} different preparations of data (dataset, split, "
            "tokenizer, template or max_length differ), so their losses are means over other tokens."
        )
    seen = [run.tokens_seen for run in runs if run.tokens_seen is not None and run.state == "finished"]
    if seen and max(seen) - min(seen) > TOKENS_TOLERANCE * max(seen):
        found.append(
            f"they have seen different numbers of tokens, {min(seen):,} to {max(seen):,}: give all the same "
            "train.max_steps and batch, or compare them in the plot by tokens."
        )
    if unfinished := [run.name for run in runs if run.state != "finished"]:
        found.append(f"{len(unfinished)} of {len(runs)} have not finished, such as {unfinished[0]}.")
    return found
