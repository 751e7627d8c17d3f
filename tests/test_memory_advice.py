"""Advice fits, an unset micro batch is the largest that fits, and what cannot fit is refused."""

import dataclasses
from pathlib import Path

import pytest

from composing import Compose, assembled, machine, resolved
from sft_exp import check, memory, memory_advice, sizes
from sft_exp.host import Host
from sft_exp.machine import Machine
from sft_exp.memory import Verdict
from sft_exp.resolve import resolve
from sft_exp.schema import Dtype, Experiment

ONE, FOUR = machine("4090"), machine("4090", 4)
HOPELESS = [
    ("model=qwen7b adapter=full hw=4090x1", ONE),
    ("model=qwen7b adapter=full hw=4090x4 zero=3", FOUR),
    ("model=qwen0.5b hw=4090x1 train.micro_batch=16 train.precision=bf16", ONE),
    ("model=qwen1.5b hw=4090x1", ONE),
    ("model=qwen7b adapter=lora hw=4090x1 train.micro_batch=8 dataset.max_length=4096", ONE),
]


def words(experiment: Experiment) -> list[str]:
    return [" ".join(change.words for change in advice.changes) for advice in memory_advice.advise(experiment)]


@pytest.mark.parametrize(("typed", "on"), HOPELESS, ids=lambda item: item if isinstance(item, str) else "")
def test_advice_fits_when_it_is_typed(here: Path, typed: str, on: Machine) -> None:
    """What is printed, added to the command line, composes to a run that fits, with the memory that was said."""
    experiment = assembled(*typed.split(), on=on)
    found = memory_advice.advise(experiment)
    assert found
    assert [advice.cost for advice in found] == sorted(advice.cost for advice in found)
    for advice in found:
        typed_after = [word for change in advice.changes for word in change.words.split()]
        keys = {word.partition("=")[0] for word in typed_after}
        before = [word for word in typed.split() if word.partition("=")[0] not in keys]
        if "train.micro_batch" not in keys:
            before.append(f"train.micro_batch={experiment.train.micro_batch}")
        made = memory.plan(assembled(*dict.fromkeys([*before, *typed_after]), on=on))
        assert made is not None
        assert made.verdict is Verdict.fits, str(advice)
        assert made.total_gib == pytest.approx(advice.plan.total_gib)


def test_the_cheapest_comes_first(here: Path) -> None:
    assert words(resolved("model=qwen7b", "hw=4090x1", on=ONE))[0] == "adapter=lora"
    tight = resolved("model=qwen0.5b", "hw=4090x1", "train.micro_batch=16", on=ONE)
    assert words(tight)[0].startswith("train.micro_batch=")
    sharded = resolved("model=r1-qwen1.5b", "hw=4090x4", "zero=0", "train.gradient_checkpointing=true", on=FOUR)
    assert words(sharded)[0] == "zero=2"


@pytest.mark.parametrize("model", ["qwen7b", "r1-qwen7b", "llama2-7b"])
def test_all_weights_of_7b_do_not_fit_one_24_gb_card(here: Path, model: str) -> None:
    """Whatever the stage, without offload; the advice is an adapter first, then offload with its host memory."""
    for stage in ("0", "1", "2", "3"):
        experiment = assembled(f"model={model}", "adapter=full", f"zero={stage}", "hw=4090x1", on=ONE)
        made = memory.plan(experiment)
        assert made is not None and made.verdict is Verdict.too_large
        found = words(experiment)
        assert found[0].startswith("adapter=lora")
        assert any("offload" in line for line in found)


def test_what_was_asked_about_types_is_kept(here: Path) -> None:
    asked = resolved("model=qwen7b", "hw=4090x1", "model.dtype=bfloat16", on=ONE)
    assert {advice.plan.memory_gib for advice in memory_advice.advise(asked)} == {24}
    assert asked.model.dtype is Dtype.bfloat16


def test_advised_adapters_are_the_shipped_ones(compose: Compose) -> None:
    assert compose("adapter=lora").experiment.adapter == memory_advice.LORA
    assert compose("adapter=qlora").experiment.adapter == memory_advice.QLORA


@pytest.mark.parametrize("profile", ["4090x1", "4090x4", "v100", "h200"])
@pytest.mark.parametrize("model", ["qwen0.5b", "qwen1.5b", "qwen7b"])
@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_the_largest_micro_batch_that_fits(here: Path, profile: str, model: str, adapter: str) -> None:
    typed = (f"hw={profile}", f"model={model}", f"adapter={adapter}", "train.global_batch=48")
    chosen = assembled(*typed, on=ONE)
    again = assembled(*typed, on=machine("h200", 8))
    size, ranks = chosen.train.micro_batch or 0, chosen.hw.processes or 1
    assert again.train.micro_batch == size  # the profile decides, not the machine it is planned on
    made = memory.plan(chosen)
    assert made is not None
    assert made.verdict is Verdict.fits or size == 1
    for larger in (n for n in range(size + 1, 48 // ranks + 1) if 48 // ranks % n == 0):
        more = memory.plan(assembled(*typed, f"train.micro_batch={larger}", on=ONE))
        assert more is not None
        assert more.verdict is not Verdict.fits


def test_eight_at_most_where_memory_is_not_known(here: Path) -> None:
    assert resolved("model=qwen0.5b", "hw=cpu", "train.global_batch=64").train.micro_batch == 8
    unknown = resolved("model=qwen0.5b", "hw=h200", "hw.memory_gib=null", "train.global_batch=64")
    assert unknown.train.micro_batch == 8


def test_a_run_that_cannot_fit_is_refused(compose: Compose) -> None:
    asked = compose("model=qwen7b", "model.weights=random", "model.path=null", "hw=4090x1", "tracking=none").experiment
    experiment = resolve(asked, ONE)
    [sentence] = check.check(experiment, ONE).problems
    for part in ("135.8 GiB on each card", "hw=4090x1 has 24 GiB", "use adapter=lora (", "hw.memory_check=false"):
        assert part in sentence
    assert check.check(experiment, ONE, plan=True).problems == []
    experiment.hw.memory_check = False
    assert check.check(experiment, ONE).problems == []


def test_a_tight_run_is_warned_about(compose: Compose) -> None:
    experiment = resolved("model=qwen0.5b", "hw=4090x1", "train.micro_batch=8", "hw.memory_gib=24", on=ONE)
    made = memory.plan(experiment)
    assert made is not None
    assert made.verdict is Verdict.tight
    [warning] = [line for line in check.check(experiment, ONE, plan=True).warnings if "tight" in line]
    assert "of the 24 GiB of hw=4090x1; safer: use " in warning


def test_offload_beyond_the_host_is_refused(compose: Compose) -> None:
    asked = compose("model=qwen3b", "model.weights=random", "model.path=null", "hw=4090x1", "zero=2_offload")
    asked.experiment.tracking.uri = None
    small = dataclasses.replace(ONE, host=Host(total=32 * 2**30, available=30 * 2**30))
    experiment = resolve(asked.experiment, small)
    sentences = [line for line in check.check(experiment, small).problems if "host memory" in line]
    need = 22 * sizes.parameters(experiment.model.shape) * 1.1 / 2**30
    assert f"needs about {need:.1f} GiB of host memory and 30.0 GiB are available" in sentences[0]
