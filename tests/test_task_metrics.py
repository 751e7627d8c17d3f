"""Scores of answers, counted by hand where that can be done."""

import sys
from pathlib import Path

import pytest

from composing import NO_CARDS, Compose
from sft_exp import check, task_metrics
from sft_exp.errors import ConfigError
from sft_exp.resolve import resolve


def test_exact_match_leaves_case_and_space_aside() -> None:
    assert task_metrics.exact_match(["It is 4.", " it  is\n5. ", "6"], ["it is 4.", "It is 5.", "7"]) == 2 / 3


def test_rouge_l_is_that_of_the_longest_common_subsequence() -> None:
    # police killed the gunman | police kill the gunman: 3 of 4 words in both (the example of Lin 2004)
    assert task_metrics.rouge_l(["police kill the gunman"], ["police killed the gunman"]) == pytest.approx(0.75)
    assert task_metrics.rouge_l(["the gunman kill police"], ["police killed the gunman"]) == pytest.approx(0.5)


def test_rouge_l_knows_scripts_without_spaces() -> None:
    assert task_metrics.Words().tokenize("Hello 世界, naïve ça2b") == ["hello", "世", "界", "naïve", "ça2b"]
    assert task_metrics.rouge_l(["天空是蓝的"], ["天空是红的"]) == pytest.approx(0.8)
    assert task_metrics.rouge_l(["Привет, мир"], ["привет мир"]) == 1.0


def test_chrf_is_that_of_sacrebleu() -> None:
    assert task_metrics.chrf(["The sky is blue."], ["The sky is blue."]) == pytest.approx(100)
    assert task_metrics.chrf(["qqq"], ["The sky is blue."]) == 0.0


def own(here: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str) -> None:
    (here / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.delitem(sys.modules, name, raising=False)


def test_own_metrics_come_along(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(
        here,
        monkeypatch,
        "def lengths(a, r):\n    return {'longer': sum(map(len, a)) / sum(map(len, r))}\n",
        "own_scores",
    )
    found = task_metrics.score(["abcd"], ["ab"], ["own_scores:lengths"])
    assert found["longer"] == 2.0 and found.keys() >= {"exact_match", "rouge_l", "chrf"}


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("f1", "write package.module:function"),
        ("no_such_module:f1", "cannot be imported (ModuleNotFoundError"),
        ("broken_scores:f1", "cannot be imported (ZeroDivisionError"),
        ("math:no_such", "cannot be imported (AttributeError"),
        ("math:pi", "is no function but float"),
    ],
)
def test_own_metrics_are_refused_before_the_start(
    compose: Compose, here: Path, monkeypatch: pytest.MonkeyPatch, path: str, sentence: str
) -> None:
    own(here, monkeypatch, "1 / 0\n", "broken_scores")
    asked = resolve(compose("model=tiny", "hw=cpu", f"eval.metrics=[{path}]").experiment, NO_CARDS)
    [problem] = check.check(asked, NO_CARDS).problems
    assert sentence in problem and problem.count(". ") == 0 and problem.endswith(".")


def test_a_failing_metric_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(here, monkeypatch, "def score(a, r):\n    return a[7]\n", "failing_scores")
    with pytest.raises(ConfigError, match=r"eval.metrics has failing_scores:score, which failed .*IndexError"):
        task_metrics.score(["a"], ["b"], ["failing_scores:score"])
