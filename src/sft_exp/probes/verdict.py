"""From the measures of a run to one word about it: healthy, or degenerate with the reasons."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from sft_exp.schema import Limits

HEALTHY, DEGENERATE, NOT_JUDGED = "healthy", "degenerate", "not judged"
EXPECTED_ENDS = 0.2
"""Share of references that must be shorter than the cap before ended answers are expected at all."""


@dataclass(frozen=True)
class Evidence:
    """What is known of a run at one step."""

    base: Mapping[str, float]
    """`probe/*` metrics of step 0."""
    last: Mapping[str, float]
    """`probe/*` metrics of the step that is judged."""
    limits: Limits
    final: bool
    """The run is over: what it was to learn must be there."""
    ends_trained: float | None
    """Share of trained answers whose end token is trained; None where that is not known."""
    short: float
    """Share of reference answers that fit into the cap of an answer's tokens, with their ends."""
    train_loss: float | None = None
    first_loss: float | None = None
    expected_tokens: float = 0.0
    """Share of reference answers that use added tokens."""
    rows_moved: float | None = None
    """How far the least moved row of an added token is from where it began, as a share of its norm."""


def judge(evidence: Evidence) -> list[str]:
    """Sentences that begin with the name of what is wrong; none where the model is healthy."""
    return [sentence for rule in RULES.values() for sentence in rule(evidence)]


def headline(reasons: list[str]) -> str:
    """`healthy`, or `degenerate: never stops (3 % of answers end); ...`."""
    return f"{DEGENERATE}: {'; '.join(reasons)}" if reasons else HEALTHY


def _get(evidence: Evidence, name: str) -> tuple[float, float] | None:
    """Base's and last value of a measure, None where one of them is missing."""
    key = f"probe/{name}"
    return (evidence.base[key], evidence.last[key]) if key in evidence.base and key in evidence.last else None


def _ends(evidence: Evidence) -> Iterator[str]:
    """A base that never stops is no fault of a run that was not to learn it, and long answers are cut off anyway."""
    if (pair := _get(evidence, "ended")) is None or evidence.short < EXPECTED_ENDS:
        return
    base, last = pair
    learns = evidence.final and bool(evidence.ends_trained)
    wanted = evidence.limits.ended * evidence.short * (1.0 if learns else base)
    if last < wanted:
        yield f"never stops ({last:.0%} of answers end, {base:.0%} before)"


def _end_not_trained(evidence: Evidence) -> Iterator[str]:
    if evidence.ends_trained == 0:
        ends = evidence.last.get("probe/p_eos")
        likely = f", P(end) is {ends:.2f} where answers end" if ends is not None else ""
        yield f"end token not trained (no trained answer has it among its labels{likely})"


def _repeats(evidence: Evidence) -> Iterator[str]:
    pair = _get(evidence, "repeated_4grams")
    if pair and pair[1] - pair[0] > evidence.limits.repetition:
        yield f"repeats itself ({pair[1]:.0%} of 4-grams are repeated, {pair[0]:.0%} before)"


def _alike(evidence: Evidence) -> Iterator[str]:
    pair = _get(evidence, "distinct_2")
    if pair and pair[1] < evidence.limits.distinct * pair[0]:
        yield f"says the same to everything (distinct-2 is {pair[1]:.2f}, {pair[0]:.2f} before)"


def _empty(evidence: Evidence) -> Iterator[str]:
    pair = _get(evidence, "empty")
    if pair and pair[1] - pair[0] > evidence.limits.empty:
        yield f"empty answers ({pair[1]:.0%}, {pair[0]:.0%} before)"


def _language(evidence: Evidence) -> Iterator[str]:
    for name in ("script_kept", "language_kept"):
        pair = _get(evidence, name)
        if pair and pair[0] - pair[1] > evidence.limits.language:
            what = name.partition("_")[0]
            yield f"wrong language ({pair[1]:.0%} of answers keep the prompt's {what}, {pair[0]:.0%} before)"
            return


def _thinking(evidence: Evidence) -> Iterator[str]:
    pair = _get(evidence, "thinks")
    if pair and pair[0] >= evidence.limits.thinking and pair[1] < evidence.limits.thinking * pair[0]:
        yield f"lost its reasoning ({pair[1]:.0%} of answers think, {pair[0]:.0%} before)"


def _tokens(evidence: Evidence) -> Iterator[str]:
    """Rows that have not moved say it for certain; whether tokens are used is judged where the data uses them."""
    if not evidence.final:
        return
    if evidence.rows_moved == 0:
        yield "added tokens untrained (their rows are as they were first drawn)"
    used, formed = (evidence.last.get(f"probe/{name}") for name in ("added_tokens", "added_tokens_well_formed"))
    limit = evidence.limits.tokens
    if used is not None and used < limit * evidence.expected_tokens:
        yield f"added tokens unused ({used:.0%} of answers have them, {evidence.expected_tokens:.0%} of the references)"
    elif formed is not None and evidence.expected_tokens and formed < limit:
        yield f"added tokens malformed ({formed:.0%} of the answers that use them close what they open)"


def _forgot(evidence: Evidence) -> Iterator[str]:
    kl, ratio = (evidence.last.get(f"probe/{name}", 0.0) for name in ("kl", "perplexity_ratio"))
    if kl > evidence.limits.kl or ratio > evidence.limits.perplexity or math.isnan(kl + ratio):
        yield f"forgot (general text: {ratio:.1f} times the base's perplexity, {kl:.2f} nats per token from the base)"


def _memorised(evidence: Evidence) -> Iterator[str]:
    unseen = evidence.last.get("probe/unseen_loss")
    if unseen and evidence.train_loss is not None and evidence.train_loss < evidence.limits.memorised * unseen:
        yield f"memorised its rows (loss {evidence.train_loss:.3f} on them, {unseen:.2f} on unseen answers)"


def _diverged(evidence: Evidence) -> Iterator[str]:
    first, last = evidence.first_loss, evidence.train_loss
    if last is not None and not math.isfinite(last):
        yield f"loss diverged (it is {last})"
    elif first is not None and last is not None and last > 1.5 * first:
        yield f"loss diverged (from {first:.2f} to {last:.2f})"


RULES: dict[str, Callable[[Evidence], Iterator[str]]] = {
    "never stops": _ends,
    "end token not trained": _end_not_trained,
    "repeats itself": _repeats,
    "says the same to everything": _alike,
    "empty answers": _empty,
    "wrong language": _language,
    "lost its reasoning": _thinking,
    "added tokens": _tokens,
    "forgot": _forgot,
    "memorised its rows": _memorised,
    "loss diverged": _diverged,
}
"""Name that a sentence begins with -> its rule, in the order of the sentences."""
