"""Scores of answers against references: exact match, ROUGE-L, chrF, and functions of one's own."""

import importlib
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sft_exp.errors import ConfigError

Metric = Callable[[Sequence[str], Sequence[str]], Mapping[str, float]]
"""Answers and references, in the same order -> named numbers."""
_WORD = re.compile(r"[^\W_]+")
_ONE_BY_ONE = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
"""Scripts that put no spaces between words: each of their letters is a word of its own."""


def score(answers: Sequence[str], references: Sequence[str], own: Sequence[str] = ()) -> dict[str, float]:
    """`exact_match` and `rouge_l` between 0 and 1, `chrf` between 0 and 100, and what the functions in `own` return."""
    found = {
        "exact_match": exact_match(answers, references),
        "rouge_l": rouge_l(answers, references),
        "chrf": chrf(answers, references),
    }
    for path in own:
        found |= _own(path, answers, references)
    return found


def exact_match(answers: Sequence[str], references: Sequence[str]) -> float:
    """Share of answers that equal their reference but for case and white space."""
    pairs = zip(answers, references, strict=True)
    same = [" ".join(a.casefold().split()) == " ".join(b.casefold().split()) for a, b in pairs]
    return sum(same) / len(same)


def rouge_l(answers: Sequence[str], references: Sequence[str]) -> float:
    """Mean ROUGE-L F1 (Lin 2004) by rouge-score, with words of any script in place of its [a-z0-9]."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], tokenizer=Words())
    scores = [scorer.score(b, a)["rougeL"].fmeasure for a, b in zip(answers, references, strict=True)]
    return float(sum(scores) / len(scores))


def chrf(answers: Sequence[str], references: Sequence[str]) -> float:
    """chrF2 (Popovic 2015) of all answers together, by sacrebleu."""
    from sacrebleu.metrics.chrf import CHRF

    return float(CHRF().corpus_score(list(answers), [list(references)]).score)


class Words:
    """Tokenizer for rouge-score: words in lower case, and single letters of scripts without spaces."""

    def tokenize(self, text: str) -> list[str]:
        """The words of a text."""
        return [piece for word in _WORD.findall(text.casefold()) for piece in _pieces(word)]


def _pieces(word: str) -> list[str]:
    if word.isascii():
        return [word]
    made, run = list[str](), ""
    for char in word:
        if unicodedata.name(char, "").startswith(_ONE_BY_ONE):
            made += [run, char]
            run = ""
        else:
            run += char
    return [piece for piece in [*made, run] if piece]


def load(path: str) -> Metric:
    """The function that a dotted path `pkg.mod:function` names. Raises ConfigError where there is none."""
    module, _, name = path.partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*", module) or not name.isidentifier():
        raise ConfigError(f"eval.metrics has '{path}': write package.module:function, such as my_pkg.scores:f1.")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # whatever the user's module does when it is imported
        raise ConfigError(
            f"eval.metrics has {path}, which cannot be imported ({type(error).__name__}: {error}): correct the path, "
            "and start where python finds the module."
        ) from error
    if not callable(found):
        raise ConfigError(f"eval.metrics has {path}, which is no function but {type(found).__name__}: name a function.")
    return found  # type: ignore[no-any-return]


def _own(path: str, answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Scores of one's own function. Raises ConfigError where it fails or returns something else."""
    try:
        found = load(path)(answers, references)
        return {str(name): float(value) for name, value in found.items()}
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"eval.metrics has {path}, which failed on {len(answers)} answers ({type(error).__name__}: {error}): it "
            "takes two lists of text and returns a dict of numbers."
        ) from error
