"""The verdict: each rule beside its threshold, relative to the base, and the names it gives."""

import dataclasses
import math
from typing import Any

import pytest

from sft_exp.probes.verdict import RULES, Evidence, headline, judge
from sft_exp.schema import Limits

GOOD = {
    "probe/ended": 0.9, "probe/empty": 0.0, "probe/repeated_4grams": 0.05, "probe/distinct_2": 0.8,
    "probe/script_kept": 1.0, "probe/language_kept": 0.9, "probe/thinks": 0.0, "probe/perplexity": 15.0,
    "probe/unseen_loss": 2.0, "probe/p_eos": 0.9,
}  # fmt: skip


def evidence(last: dict[str, float] | None = None, base: dict[str, float] | None = None, **fields: Any) -> Evidence:
    known = {"ends_trained": 1.0, "short": 1.0, "train_loss": 1.5, "first_loss": 2.5, "final": True, **fields}
    measured = {"probe/kl": 0.02, "probe/perplexity_ratio": 1.05}
    full = {f"probe/{key}": value for key, value in (last or {}).items()}
    begun = {f"probe/{key}": value for key, value in (base or {}).items()}
    return Evidence(base=GOOD | begun, last=GOOD | measured | full, limits=Limits(), **known)


def test_a_good_run_is_healthy() -> None:
    assert judge(evidence()) == [] and headline([]) == "healthy"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("never stops", evidence({"ended": 0.03})),
        ("end token not trained", evidence(ends_trained=0.0)),
        ("repeats itself", evidence({"repeated_4grams": 0.5})),
        ("says the same to everything", evidence({"distinct_2": 0.3})),
        ("empty answers", evidence({"empty": 0.4})),
        ("wrong language", evidence({"script_kept": 0.6})),
        ("wrong language", evidence({"language_kept": 0.5})),
        ("lost its reasoning", evidence({"thinks": 0.1}, {"thinks": 0.9})),
        ("added tokens untrained", evidence({"added_tokens": 1.0}, rows_moved=0.0, expected_tokens=1.0)),
        ("added tokens unused", evidence({"added_tokens": 0.1}, rows_moved=0.1, expected_tokens=1.0)),
        ("added tokens malformed", evidence({"added_tokens": 1, "added_tokens_well_formed": 0.1}, expected_tokens=1.0)),
        ("forgot", evidence({"kl": 1.5})),
        ("forgot", evidence({"perplexity_ratio": 3.0})),
        ("forgot", evidence({"kl": math.nan})),
        ("memorised its rows", evidence(train_loss=0.01)),
        ("loss diverged", evidence(train_loss=math.nan)),
        ("loss diverged", evidence(train_loss=9.0)),
    ],
)  # fmt: skip
def test_each_sickness_has_its_name(name: str, found: Evidence) -> None:
    reasons = judge(found)
    assert len(reasons) == 1 and reasons[0].startswith(f"{name} ("), reasons
    assert headline(reasons) == f"degenerate: {reasons[0]}"
    assert any(name.startswith(rule) for rule in RULES)


def test_the_sentence_of_the_front_page() -> None:
    assert headline(judge(evidence({"ended": 0.03}))) == "degenerate: never stops (3% of answers end, 90% before)"


@pytest.mark.parametrize(
    "found",
    [
        evidence({"ended": 0.0}, {"ended": 0.0}, ends_trained=None),  # it never stopped, and nothing was to change that
        evidence({"ended": 0.0}, short=0.1),  # the references are longer than the cap
        evidence({"repeated_4grams": 0.6}, {"repeated_4grams": 0.5}),
        evidence({"script_kept": 0.3}, {"script_kept": 0.4}),
        evidence({"thinks": 0.0}, {"thinks": 0.2}),
        evidence({"added_tokens": 0.0}, rows_moved=0.1, expected_tokens=0.0),  # the data does not use them either
    ],
)
def test_what_was_so_before_is_no_fault_of_the_run(found: Evidence) -> None:
    assert judge(found) == []


def test_a_base_that_never_stops_must_stop_after_training_with_ends() -> None:
    found = evidence({"ended": 0.1}, {"ended": 0.0})
    assert [reason[:11] for reason in judge(found)] == ["never stops"]
    assert judge(dataclasses.replace(found, final=False)) == []  # it is still learning


def test_several_reasons_stand_in_one_line() -> None:
    text = headline(judge(evidence({"ended": 0.0, "kl": 3.0})))
    assert text.startswith("degenerate: never stops (") and "; forgot (" in text
