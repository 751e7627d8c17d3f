"""`python -m sft_exp compare`: differences, effects against noise, and refusals to rank."""

import csv
import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from comparing import run_folder
from sft_exp.cli import start
from sft_exp.compare import answers, command, comparison, difference, effects, page, plots, ranking, text
from sft_exp.compare.facts import Facts
from sft_exp.errors import ConfigError


def two_factors(folder: Path, losses: dict[tuple[str, str, int], float], **more: object) -> list[Facts]:
    """Runs of adapter x learning rate x seed with these eval losses."""
    return [
        run_folder(
            folder / f"{number}-x", f"adapter={adapter}", f"train.learning_rate={rate}", f"train.seed={seed}",
            eval_loss=loss, **more,  # type: ignore[arg-type]
        )
        for number, ((adapter, rate, seed), loss) in enumerate(losses.items())
    ]  # fmt: skip


CROSSED = {
    ("lora", "0.001", 1): 2.0, ("lora", "0.001", 2): 2.2, ("lora", "0.002", 1): 1.0, ("lora", "0.002", 2): 1.2,
    ("full", "0.001", 1): 2.1, ("full", "0.001", 2): 2.3, ("full", "0.002", 1): 1.1, ("full", "0.002", 2): 1.3,
}  # fmt: skip


def test_effects_are_those_computed_by_hand(tmp_path: Path) -> None:
    runs = two_factors(tmp_path, CROSSED)
    factors = difference.factors(runs)
    assert factors == ["adapter", "train.learning_rate"]
    adapter, rate = effects.effects(runs, factors, ["eval/loss"])
    # Cell means 2.1, 1.1, 2.2, 1.2. Each cell's variance is 0.02, so the pooled deviation is sqrt(0.02) with 4 degrees
    # of freedom (t = 2.776); one pair's difference has variance 0.02 (1/2 + 1/2), the mean of two pairs half of it.
    assert adapter.difference == pytest.approx(0.1) and rate.difference == pytest.approx(-1.0)
    assert adapter.margin == pytest.approx(2.776 * math.sqrt(0.01)) == rate.margin
    assert (adapter.beyond_noise, rate.beyond_noise) == (False, True)
    assert (adapter.reference, adapter.level) == ("lora", "full")


def test_a_design_with_a_hole_compares_like_with_like(tmp_path: Path) -> None:
    runs = two_factors(tmp_path, {key: loss for key, loss in CROSSED.items() if key[:2] != ("full", "0.002")})
    adapter, rate = effects.effects(runs, difference.factors(runs), ["eval/loss"])
    assert adapter.difference == pytest.approx(0.1), "the mean over all lora runs would make it 0.6"
    assert rate.difference == pytest.approx(-1.0)


def test_one_seed_leaves_the_noise_unknown(tmp_path: Path) -> None:
    runs = two_factors(tmp_path, {key: loss for key, loss in CROSSED.items() if key[2] == 1})
    factors = difference.factors(runs)
    assert [one.beyond_noise for one in effects.effects(runs, factors, ["eval/loss"])] == [None, None]
    assert "sweep train.seed=1,2,3" in ranking.verdict(ranking.places(runs, factors, "eval/loss"), factors, "eval/loss")


def test_ranking_says_when_the_first_is_not_really_better(tmp_path: Path) -> None:
    runs = two_factors(tmp_path, CROSSED)
    factors = difference.factors(runs)
    found = ranking.places(runs, factors, "eval/loss")
    assert found[0].cell == ("lora", "0.002") and found[0].mean == pytest.approx(1.1)
    assert "within the noise" in ranking.verdict(found, factors, "eval/loss")
    clear = [place for place in found if place.cell[0] == "lora"]
    assert " is best: " in ranking.verdict(clear, factors, "eval/loss")
    fastest = ranking.places(runs, factors, "perf/tokens_per_second")
    assert fastest[0].mean >= fastest[-1].mean


def test_not_finite_values_do_not_decide(tmp_path: Path) -> None:
    runs = two_factors(tmp_path, {**CROSSED, ("lora", "0.001", 1): math.nan})
    places = ranking.places(runs, difference.factors(runs), "eval/loss")
    assert all(math.isfinite(place.mean) for place in places)


def test_what_is_beyond_the_question_is_told_apart(tmp_path: Path) -> None:
    one = run_folder(tmp_path / "a-x", "adapter=lora", commit="c1", versions={"torch": "2.13.0"})
    two = run_folder(tmp_path / "b-x", "adapter=full", commit="c2", versions={"torch": "2.11.0"}, diff="+ a line")
    kinds = {found.key: found.kind for found in difference.differences([one, two])}
    assert kinds["adapter"] == "question" and kinds["adapter.r"] == "follows"
    beyond = {key for key, kind in kinds.items() if kind == "beyond"}
    assert beyond == {"git commit", "uncommitted changes", "version of torch"}
    assert not [key for key in kinds if key.startswith("outputs")]
    lines = list(text.differing(difference.differences([one, two]), colour=True))
    assert [line.startswith(text.RED) for line in lines].count(True) == 3


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        ({"fingerprint": "b2"}, "different preparations of data"),
        ({"tokens": 2000}, "different numbers of tokens, 1,000 to 2,000"),
        ({"state": "running"}, "1 of 2 have not finished"),
    ],
)
def test_no_ranking_where_it_would_be_none(
    tmp_path: Path, second: dict[str, object], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folder(tmp_path / "day" / "1-a", "adapter=lora")
    run_folder(tmp_path / "day" / "2-b", "adapter=full", **second)  # type: ignore[arg-type]
    start(["compare", str(tmp_path / "day"), "--out", str(tmp_path / "out")])
    out = capsys.readouterr().out
    assert "not ranked" in out and sentence in out and "  1. " not in out
    html = (tmp_path / "out" / "compare.html").read_text()
    assert "Not ranked by eval/loss, since" in html and sentence in html
    start(["compare", str(tmp_path / "day"), "--anyway", "--out", str(tmp_path / "out")])
    out = capsys.readouterr().out
    assert "  1. " in out and sentence in out


def test_other_tokens_by_the_question_forbid_losses_only(tmp_path: Path) -> None:
    runs = [
        run_folder(
            tmp_path / f"{seed}-{tokens}", f"model.special_tokens={tokens}", f"train.seed={seed}",
            fingerprint=tokens, tokens=1000 if tokens == "[]" else 800, metrics={"probe/ended_share": ended},
        )
        for tokens, ended in (("[]", 0.9), ("[<a>]", 0.5))
        for seed in (1, 2)
    ]  # fmt: skip
    found = comparison.compare(runs, "eval/loss")
    assert not found.ranked and len(found.objections) == 2
    assert {effect.metric for effect in found.effects} == {"probe/ended_share"}, "nothing moved the speed"
    assert not [effect for effect in found.effects if effect.metric.endswith("loss")]
    assert comparison.compare(runs, "probe/ended_share").ranked[0].cell == ("[]",)
    other = run_folder(tmp_path / "9-x", "model.special_tokens=[]", "train.seed=3", fingerprint="changed since")
    assert not comparison.compare([*runs, other], "eval/loss").effects, "the data differs within one setting"


def test_variables_that_change_together_are_not_ranked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder(tmp_path / "1-a", "adapter=lora", "train.learning_rate=0.1")
    run_folder(tmp_path / "2-b", "adapter=full", "train.learning_rate=0.2")
    start(["compare", str(tmp_path / "1-a"), str(tmp_path / "2-b"), "--out", str(tmp_path / "out")])
    assert "adapter, train.learning_rate change together" in capsys.readouterr().out


def test_report_and_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    day = tmp_path / "outputs" / "2026-12-01"
    two_factors(day, CROSSED, answer="<b>four</b>", metrics={"probe/ended_share": 0.5})
    start(["compare", str(day), "--outputs", str(tmp_path / "outputs")])
    out = capsys.readouterr().out
    (html,) = (tmp_path / "outputs").rglob("compare.html")
    (table,) = (tmp_path / "outputs").rglob("compare.csv")
    assert str(html) in out and "what each variable moved" in out
    shown = html.read_text()
    assert "<b>four" not in shown and "&lt;b&gt;four" in shown and "probe/ended_share" in shown
    assert "http" not in shown and "<script" not in shown, "a report is one file"
    for svg in re.findall(r"<svg.*?</svg>", shown, re.DOTALL):
        ElementTree.fromstring(svg)
    assert shown.count("<polyline") >= 4 * len(CROSSED)
    lines = list(csv.DictReader(table.read_text().splitlines()))
    assert len(lines) == 8 and {line["eval/loss"] for line in lines} == {str(loss) for loss in CROSSED.values()}
    assert {line["train.seed"] for line in lines} == {"1", "2"}


def test_what_moved_comes_first_and_what_is_constant_is_left_out(tmp_path: Path) -> None:
    runs = [
        run_folder(
            tmp_path / f"{seed}-{kind}", f"adapter={kind}", f"train.seed={seed}", eval_loss=2.0 + seed / 10,
            verdict="healthy" if kind == "lora" or seed == 2 else "never stops",
            metrics={"probe/ended": ended + seed / 100, "probe/thinks": 0.0, "probe/empty": seed / 10},
        )
        for kind, ended in (("lora", 0.9), ("full", 0.3))
        for seed in (1, 2)
    ]  # fmt: skip
    found = comparison.compare(runs, "eval/loss")
    assert found.constant.keys() >= {"probe/thinks"} and "probe/thinks" not in found.varying
    said = "\n".join(text.lines(found, colour=False))
    effects = said[said.index("what each variable moved") : said.index("by chance alone")]
    assert re.search(r"adapter +lora -> full +probe/ended +-0.6 ", effects) and "moved" in effects
    quiet = next(line for line in effects.splitlines() if "within noise" in line)
    assert "probe/empty" in quiet and "probe/thinks" not in effects
    assert "by chance alone" in said
    assert re.search(r"lora .* 2 healthy", said) and re.search(r"full .* 1 never stops; 1 healthy", said)


def test_numbers_are_written_without_exponents() -> None:
    assert [text.spread(value) for value in (0.0216, 4.25, 405.6, 12345.6)] == ["0.022", "4.2", "406", "12,346"]
    assert [text.spread(value, "+") for value in (-0.00061911, 1.7512, -568.4)] == ["-0.000619", "+1.75", "-568"]


def test_what_a_run_works_out_of_the_question_follows(tmp_path: Path) -> None:
    runs = [
        run_folder(tmp_path / "a-x", "train.global_batch=8", "train.seed=1"),
        run_folder(tmp_path / "b-x", "train.global_batch=4", "dataset.limit=200", "train.seed=1"),
    ]
    for run, micro, sharing in zip(runs, (8, 4), (2, 1), strict=True):
        run.config.update({"train.micro_batch": micro, "sweep.per_device": sharing})
    kinds = {one.key: one.kind for one in difference.differences(runs)}
    assert kinds["train.micro_batch"] == "follows" and "sweep.per_device" not in kinds
    assert (
        ranking.setting(["train.global_batch", "dataset.limit"], ("8", "")) == "train.global_batch=8 dataset.limit=none"
    )
    assert text.table(comparison.compare(runs, "eval/loss"), ["eval/loss"])[1][:2] == ["8", "none"]


def test_the_page_names_settings_and_folders(tmp_path: Path) -> None:
    runs = two_factors(tmp_path, CROSSED)
    html = page.page("x", comparison.compare(runs, "eval/loss"))
    assert "</i>adapter=lora train.learning_rate=0.001</span>" in html
    assert f"Folders below {tmp_path}." in html and "<td>3-x</td>" in html
    assert html.count("<th>behaviour</th>") == 2
    for run in runs:
        run.behaviour.clear()
    assert "<th>behaviour</th>" not in page.page("x", comparison.compare(runs, "eval/loss"))
    wide = plots.parallel(["a", "b", "c"], [(0, (1.0, 2.0, "x")), (1, (2.0, 1.0, "y"))])
    assert f'viewBox="0 0 {60 + 2 * plots.AXIS_STEP + 100} ' in wide


def test_answers_to_one_prompt_stand_side_by_side(tmp_path: Path) -> None:
    runs = [
        run_folder(tmp_path / "1-a", "adapter=lora", answer="four"),
        run_folder(tmp_path / "2-b", "adapter=full", answer="4 4 4 4", verdict="never stops"),
        run_folder(tmp_path / "3-c", "adapter=full", "train.seed=2", answer="not the first of its setting"),
    ]
    sample, probe, held_out = answers.questions(runs, ["adapter"])
    assert (sample.kind, probe.kind, held_out.kind) == ("sample", "probe", "eval")
    assert probe.prompt == "probe 2+2?" and probe.one_before == "five" and held_out.reference == "four"
    assert probe.after == {"lora": "four", "full": "4 4 4 4 [cut off]"}
    html = page.page("x", comparison.compare(runs, "eval/loss"))
    assert "4 4 4 4 [cut off]" in html and html.count('colspan="2"') >= 2


def test_another_draw_of_rows_forbids_losses_only(tmp_path: Path) -> None:
    """A part of an epoch holds other rows with another seed, and so other numbers of tokens."""
    runs = [
        run_folder(
            tmp_path / f"{seed}-{kind}", f"adapter={kind}", f"train.seed={seed}", tokens=900 + 50 * seed,
            metrics={"probe/ended": 0.5 + seed / 10},
        )
        for kind in ("lora", "full")
        for seed in (1, 2)
    ]  # fmt: skip
    found = comparison.compare(runs, "eval/loss")
    assert [one.tokens_only for one in found.objections] == [True] and not found.ranked
    assert {one.metric for one in found.effects} == {"probe/ended"}


def test_runs_are_found_by_folder_name_and_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = tmp_path / "2026-12-01" / "120000_1-sweep"
    two_factors(sweep, CROSSED)
    jobs = [{"folder": str(path)} for path in sorted(sweep.iterdir())] + [{"folder": str(sweep / "9-waits")}]
    (sweep / "sweep.json").write_text(json.dumps({"jobs": jobs}))
    start(["compare", sweep.name, "--outputs", str(tmp_path)])
    assert (sweep / "compare.html").exists() and "8 runs" in capsys.readouterr().out
    start(["compare", "0-x", "1-x", "--outputs", str(tmp_path), "--out", str(tmp_path / "out")])
    assert "2 runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([], "required: RUN"),
        (["nowhere"], "nowhere is no folder and no run"),
        (["nowhere", "neither"], "neither is no folder"),
        (["."], "holds no run"),
        (["params.adapter.kind = 'lora'"], "there is no tracking store"),
        (["a", "--metrik", "x"], "--metrik"),
    ],
)
def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], sentence: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        command.show(argv)
    assert not list(tmp_path.iterdir()), "a refused comparison leaves nothing"


def test_a_metric_that_nobody_logged(tmp_path: Path) -> None:
    two_factors(tmp_path, CROSSED)
    with pytest.raises(ConfigError, match=r"--metric=eval/los was logged by none.*eval/loss"):
        command.show([str(tmp_path), "--metric", "eval/los"])
    with pytest.raises(ConfigError, match="the only run found"):
        command.show([str(tmp_path / "0-x")])


def test_evaluations_stand_at_the_tokens_seen_until_then(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "a-x", tokens=900)
    assert page.by_tokens(run, "eval/loss") == [(900.0, 2.0)]
    assert page.by_tokens(run, "train/loss")[0] == (300.0, 3.0)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (3.1, 3.2), (0, 2e6), (-5, 5)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    found = plots.ticks(low, high)
    assert 3 <= len(found) <= 7 and all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)


def test_plots_take_what_runs_log() -> None:
    assert plots.curves([plots.Line(0, "nothing", [])], "x") == ""
    flat = plots.curves([plots.Line(0, "a & b", [(1, 2.0), (2, 2.0), (3, math.nan)])], "x")
    assert "a &amp; b" in flat and "nan" not in flat
    assert plots.parallel(["a", "b"], [(0, ["x", None])]) == ""
    assert plots.parallel(["a", "b"], [(0, ["x", 1.0]), (1, ["y", 1.0])]).count("<polyline") == 2
