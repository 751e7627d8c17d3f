"""Scores of tags against values counted by hand, and the sweep that uses them."""

import itertools

import pytest
import yaml

from composing import compose, machine
from sft_exp import check, chunk_tags, cli, resolve

ONE = "<chunk>a</chunk>"


@pytest.mark.parametrize(
    ("answers", "tagged", "formed", "ratio"),
    [
        ([ONE + ONE, "none"], 0.5, 0.5, 1.0),
        ([ONE, "<chunk>cut"], 1.0, 1.0, 0.75),
        (["</chunk>a<chunk>", ONE * 3], 1.0, 0.5, 2.0),
        (["", ""], 0.0, 0.0, 0.0),
    ],
)
def test_scores(answers: list[str], tagged: float, formed: float, ratio: float) -> None:
    found = chunk_tags.scores(answers, [ONE, ONE])
    assert found == {"tagged": tagged, "tags_well_formed": formed, "tags_to_reference": ratio}
    assert chunk_tags.scores(answers, ["", ""])["tags_to_reference"] == 0.0


@pytest.mark.parametrize(("sweep", "count"), [("babble", 18), ("babble_full", 6)])
def test_no_job_of_the_sweep_is_refused(sweep: str, count: int) -> None:
    params = yaml.safe_load((cli.conf_dir() / "sweep" / f"{sweep}.yaml").read_text())["hydra"]["sweeper"]["params"]
    jobs = list(itertools.product(*([f"{key}={value}" for value in str(params[key]).split(",")] for key in params)))
    assert len(jobs) == count
    found, tokens = machine("h200"), set()
    for job in jobs:
        asked = resolve.resolve(compose(*job, "tracking=none", "model.attention=sdpa").experiment, found)
        assert not check.check(asked, found).problems
        tokens.add((*asked.model.special_tokens, asked.model.train_special_tokens))
    both = {(True,), ("<chunk>", "</chunk>", True)}
    assert tokens == (both if sweep == "babble_full" else both | {("<chunk>", "</chunk>", False)})
