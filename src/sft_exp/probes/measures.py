"""Answers -> the `probe/*` metrics of one step."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from sft_exp.probes import languages, repetition, thinking
from sft_exp.probes.answers import Answer
from sft_exp.probes.prompts import Prompt


@dataclass(frozen=True)
class Setting:
    """What the measures must know of a run."""

    added_tokens: tuple[str, ...] = ()
    prompted_think: bool = False
    """The generation prompt opens a think block."""


def measure(prompts: Sequence[Prompt], answers: Sequence[Answer], setting: Setting) -> dict[str, float]:
    """Shares and means over all answers; a measure that does not apply is left out."""
    ids = [answer.ids for answer in answers]
    return {
        "probe/ended": fmean(answer.ended for answer in answers),
        "probe/empty": fmean(not answer.text for answer in answers),
        "probe/tokens": fmean(map(len, ids)),
        "probe/repeated_4grams": fmean(map(repetition.repeated, ids)),
        "probe/distinct_2": repetition.distinct(ids),
        "probe/longest_repeat": fmean(map(repetition.longest_repeat, ids)),
        **_language(prompts, answers),
        **_thinking(answers, setting),
        **_tokens(answers, setting.added_tokens),
    }


def _language(prompts: Sequence[Prompt], answers: Sequence[Answer]) -> dict[str, float]:
    candidates = {prompt.language for prompt in prompts if prompt.language}
    asked = [(prompt.language, answer.text) for prompt, answer in zip(prompts, answers, strict=True) if prompt.language]
    script = [languages.script_kept(text, code) for code, text in asked]
    language = [languages.language_kept(text, code, candidates) for code, text in asked]
    return _share("probe/script_kept", script) | _share("probe/language_kept", language)


def _thinking(answers: Sequence[Answer], setting: Setting) -> dict[str, float]:
    states = [thinking.state(answer.text, prompted=setting.prompted_think, ended=answer.ended) for answer in answers]
    return {
        "probe/thinks": fmean(state in ("ok", "unclosed") for state in states),
        "probe/think_malformed": fmean(state in ("empty", "malformed") for state in states),
    }


def _tokens(answers: Sequence[Answer], tokens: tuple[str, ...]) -> dict[str, float]:
    """Use of added tokens; well-formed is a share of the answers that use them."""
    using = [answer for answer in answers if thinking.occurrences(answer.text, tokens)]
    if not tokens:
        return {}
    formed = [thinking.well_formed(answer.text, tokens, ended=answer.ended) for answer in using]
    return {"probe/added_tokens": len(using) / len(answers), **_share("probe/added_tokens_well_formed", list(formed))}


def _share(name: str, values: Sequence[bool | None]) -> dict[str, float]:
    """Share of the True among those that were judged."""
    judged = [value for value in values if value is not None]
    return {name: fmean(judged)} if judged else {}
