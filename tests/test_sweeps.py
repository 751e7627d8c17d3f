"""Decisions of sweeps that need no process: slots, keys, records, searches' words, rules."""

import dataclasses
import json
from pathlib import Path

import pytest

from composing import NO_CARDS, Compose, machine
from sft_exp import rundir
from sft_exp.errors import ConfigError
from sft_exp.resolve import resolve
from sft_exp.rules import sweep as rules
from sft_exp.schema import Direction, Pruner, Sampler, Sweep
from sft_exp.sweeps import ending, going_on, job, objective, ready, screen
from sft_exp.sweeps.slots import CPU, Slots
from sft_exp.sweeps.view import View, clock


def test_cards_are_handed_out_and_taken_back(compose: Compose) -> None:
    one, two = (compose("model=tiny", f"hw.processes={count}").experiment.hw for count in (1, 2))
    for hw in (one, two):
        hw.device = resolve(compose("model=tiny").experiment, machine("4090", 4)).hw.device
    slots = Slots([0, 1, 2, 3], per_device=1)
    assert slots.take(one, None) == [0]
    assert slots.take(two, None) == [1, 2]
    assert slots.take(two, None) is None
    assert slots.take(one, [0]) is None
    assert slots.take(one, [3]) == [3]
    slots.give([0])
    assert slots.take(one, [0]) == [0]


def test_jobs_share_a_card_only_when_they_must(compose: Compose) -> None:
    hw = resolve(compose("model=tiny", "hw.processes=1").experiment, machine("4090", 2)).hw
    slots = Slots([0, 1], per_device=2)
    assert [slots.take(hw, None) for _ in range(5)] == [[0], [1], [0], [1], None]


def test_the_cpu_has_slots_too(compose: Compose) -> None:
    hw = resolve(compose("model=tiny", "hw=cpu").experiment, NO_CARDS).hw
    slots = Slots([], per_device=2)
    assert [slots.take(hw, None) for _ in range(3)] == [[CPU], [CPU], None]
    assert not slots.room


def test_jobs_that_share_are_planned_for_their_share(compose: Compose) -> None:
    on_card = compose("model=tiny", "hw=4090x1", "sweep.per_device=2").experiment
    assert ready.shared(on_card, machine("4090")).hw.memory_gib == 12.0
    on_cpu = compose("model=tiny", "hw=cpu", "sweep.per_device=2").experiment
    assert ready.shared(on_cpu, NO_CARDS).hw.threads == 4
    assert ready.shared(compose("model=tiny", "hw=cpu", "hw.threads=3").experiment, NO_CARDS).hw.threads == 3


def test_a_job_gets_its_cards_and_goes_on_from_a_checkpoint(compose: Compose, tmp_path: Path) -> None:
    asked = job.new(0, compose("model=tiny", "hw=4090x1"), tmp_path)
    fresh = ready.to_start(asked, [2], 4000, "parent")
    assert (fresh.experiment.hw.devices, fresh.port, fresh.parent_run_id) == ([2], 4000, "parent")
    assert fresh.experiment.resume is None
    asked.run.path.mkdir()
    (asked.run.path / "metrics.jsonl").touch()
    assert ready.to_start(asked, [2], 4000, None).experiment.resume is None
    assert not asked.run.path.exists()
    checkpoint = asked.run.checkpoints / "checkpoint-4"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").touch()
    again = ready.to_start(asked, [3], 4001, None)
    assert again.experiment.resume == asked.folder
    assert again.overrides == ["hw.devices=[3]"]


def test_the_unfinished_sweep_of_the_same_command_is_found(compose: Compose, tmp_path: Path) -> None:
    key = job.key([compose("model=tiny", "train.seed=1"), compose("model=tiny", "train.seed=2")])
    assert key == job.key([compose("model=tiny", f"train.seed={n}", "sweep.resume=x") for n in (1, 2)])
    assert key != job.key([compose("model=tiny", "train.seed=1"), compose("model=tiny", "train.seed=3")])
    day = tmp_path / "2026-01-01"
    for name, ended in (("1-sweep", None), ("2-sweep", 5.0), ("3-sweep", None)):
        (day / name).mkdir(parents=True)
        job.write(day / name, {"key": key if name < "3" else "other", "ended": ended, "command": "c"}, [])
    fresh = day / "4-sweep"
    assert going_on.folder(Sweep(), key, fresh) == day / "1-sweep"
    assert going_on.folder(Sweep(resume="never"), key, fresh) == fresh
    assert going_on.folder(Sweep(resume=str(day / "2-sweep")), key, fresh) == day / "2-sweep"
    with going_on.locked(day / "1-sweep"):
        assert going_on.folder(Sweep(), key, fresh) == fresh
    for wrong, words in ((day / "3-sweep", "another sweep"), (tmp_path, "no sweep folder")):
        with pytest.raises(ConfigError, match=words):
            going_on.folder(Sweep(resume=str(wrong)), key, fresh)


def test_record_round_trip(compose: Compose, tmp_path: Path) -> None:
    jobs = [job.new(number, compose("model=tiny"), tmp_path) for number in range(2)]
    jobs[1].end("failed", "it broke")
    job.write(tmp_path, {"key": "k"}, jobs)
    head, back = job.read(tmp_path)
    assert head == {"key": "k"}
    assert back == [dataclasses.replace(each, request=None) for each in jobs]


@pytest.mark.parametrize(
    ("status", "code", "log", "state", "reason"),
    [
        ({"state": "finished"}, 0, "", "finished", ""),
        ({"state": "failed", "reason": "rank0 was killed by SIGSEGV"}, 1, "", "failed", "SIGSEGV"),
        ({"state": "pruned", "reason": "pruned"}, 138, "", "pruned", "pruned"),
        ({"state": "running"}, -9, "", "failed", "killed by SIGKILL"),
        ({}, 2, "note: x\nsft_exp: no such file.\n", "refused", "no such file."),
        ({}, 1, "Traceback\n", "failed", "exit code 1"),
    ],
)
def test_how_a_job_went(
    compose: Compose, tmp_path: Path, status: dict[str, str], code: int, log: str, state: str, reason: str
) -> None:
    asked = job.new(0, compose("model=tiny"), tmp_path)
    asked.run.path.mkdir()
    if status:
        asked.run.status.write_text(json.dumps(status))
    (tmp_path / "0.log").write_text(log)
    ending.note(asked, code, tmp_path / "0.log")
    assert asked.state == state
    assert reason in asked.reason
    if status:
        assert json.loads(asked.run.status.read_text())["state"] == state


def finished(compose: Compose, folder: Path, number: int, *rows: dict[str, float]) -> job.Job:
    made = job.new(number, compose("model=tiny", f"train.seed={number}"), folder)
    made.run.path.mkdir(parents=True)
    made.run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made.end("finished")
    return made


def test_the_best_job(compose: Compose, tmp_path: Path) -> None:
    jobs = [
        finished(compose, tmp_path, 0, {"step": 1, "eval/loss": 1.0}, {"step": 2, "eval/loss": 3.0}),
        finished(compose, tmp_path, 1, {"step": 1, "eval/loss": 2.0, "perf/tokens_per_second": 9}),
        finished(compose, tmp_path, 2, {"step": 1, "eval/loss": float("nan")}),
        finished(compose, tmp_path, 3, {"step": 1}),
    ]
    assert objective.best(jobs, Sweep()) is jobs[1]
    assert objective.best(jobs, Sweep(direction=[Direction.maximize])) is jobs[0]
    assert objective.values(jobs[1], Sweep(objective=["eval/loss", "perf/tokens_per_second"])) == [2.0, 9.0]
    assert objective.best(jobs[2:], Sweep()) is None


def test_a_job_is_named_by_what_sets_it_apart(compose: Compose, tmp_path: Path) -> None:
    words = [("adapter=lora", 1), ("adapter=full", 2)]
    jobs = [job.new(at, compose("model=tiny", word, f"train.seed={seed}", f"zero={seed + 1}"), tmp_path)
            for at, (word, seed) in enumerate(words)]  # fmt: skip
    assert [screen.title(each, jobs) for each in jobs] == ["0 lora seed=1 zero=2", "1 full seed=2 zero=3"]


def test_values_of_a_search_are_short_in_a_name(compose: Compose, tmp_path: Path) -> None:
    jobs = [job.new(at, compose("model=tiny"), tmp_path) for at in range(2)]
    for each, rate in zip(jobs, (0.0003028525153605888, 1e-05), strict=True):
        each.overrides = f"train.learning_rate={rate} train.warmup=0.0 zero='2'" if each.number else f"train.x={rate}"
    assert screen.title(jobs[1], jobs) == "1 learning_rate=1e-05 warmup=0 zero=2"
    assert screen.title(jobs[0], jobs) == "0 x=0.000303"


def test_what_is_seen_of_a_job(compose: Compose, tmp_path: Path) -> None:
    row = {"step": 4, "train/loss": 2.5, "train/total_steps": 10, "perf/step_seconds": 20.0,
           "perf/tokens_per_second": 1234.5, "perf/peak_memory_gib": 1.25}  # fmt: skip
    running = finished(compose, tmp_path, 0, row)
    running.state = "running"
    view = View(running)
    assert view.update() == [row]
    assert view.update() == []
    assert view.cells() == ["4/10", "2.5000", "", "1,234", "1.2", "2:00"]
    assert clock(3725) == "1:02:05"
    other = finished(compose, tmp_path, 1)
    drawn = screen.table([running, other], {0: view}, 80, screen.shared_words([running, other]))
    assert "train.seed=0" in drawn[1]
    assert "model=tiny" not in drawn[1]
    assert max(map(len, drawn)) < 80


def test_a_resumed_job_takes_rows_back_while_it_is_looked_at(compose: Compose, tmp_path: Path) -> None:
    running = finished(compose, tmp_path, 0, {"step": 1, "train/loss": 2.0}, {"step": 2, "train/loss": 1.5})
    view = View(running)
    assert [row["step"] for row in view.update()] == [1, 2]
    rows = [{"step": 1, "train/loss": 2.0}, {"step": 2, "train/loss": 1.4375}, {"step": 3, "train/loss": 1.25}]
    rundir.write_text(running.run.metrics, "".join(json.dumps(row) + "\n" for row in rows))
    assert view.update() == rows  # from the first on: the old offset lies within a line of the new file
    assert view.last["train/loss"] == 1.25


def test_running_jobs_are_shown_first_where_there_is_little_room(compose: Compose, tmp_path: Path) -> None:
    jobs = [job.new(number, compose("model=tiny"), tmp_path) for number in range(9)]
    for each in jobs[:5]:
        each.end("finished")
    jobs[5].state = jobs[6].state = "running"
    assert [each.number for each in screen.shown(jobs, 2)] == [5, 6]
    assert [each.number for each in screen.shown(jobs, 20)] == [2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"space": {}}, "sweep.space is empty"),
        ({"space": {"train.seed": []}}, "no values for train.seed"),
        ({"space": {"train.seed": {"low": 1}}}, "neither a list nor a range"),
        ({"space": {"train.seed": {"low": 2, "high": 1}}}, "goes from 2 to 1"),
        ({"space": {"train.learning_rate": {"low": 0, "high": 1, "log": True}}}, "above 0 for log"),
        ({"sampler": Sampler.grid, "space": {"train.seed": {"low": 1, "high": 2}}}, "grid takes lists"),
        ({"trials": 0}, "sweep.trials=0"),
        ({"per_device": 0}, "sweep.per_device=0"),
        ({"objective": ["a", "b"]}, "2 metrics and sweep.direction 1"),
        ({"objective": ["a", "b"], "direction": [Direction.minimize] * 2}, "use sweep.sampler=nsga2"),
        ({"pruner": Pruner.median}, "set train.eval_steps=N"),
    ],
)
def test_a_search_that_cannot_start(compose: Compose, changes: dict[str, object], words: str) -> None:
    experiment = compose("model=tiny").experiment
    usual = {"sampler": Sampler.tpe, "space": {"train.seed": [1, 2]}}
    experiment.sweep = Sweep(**{**usual, **changes})  # type: ignore[arg-type]
    assert words in " ".join(rules.of_search(experiment))
