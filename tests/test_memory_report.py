"""The plan in the run folder, and the measured peak beside it."""

import json
from pathlib import Path

import pytest

from composing import assembled, machine
from sft_exp import memory, memory_report, progress, rundir
from sft_exp.rundir import RunDir
from sft_exp.schema import Experiment
from sft_exp.tracking import SUMMARY

RESULT = {
    "steps": 3, "total_steps": 3, "loss_first": 2.0, "loss_last": 1.0, "tokens_per_second": 10.0,
    "peak_memory_of": "card", "trainable_parameters": 1, "parameters": 2,
}  # fmt: skip


@pytest.fixture
def experiment(here: Path) -> Experiment:
    return assembled("model=qwen1.5b", "hw=4090x1", "adapter=lora", on=machine("4090"))


def test_the_record_adds_up(experiment: Experiment) -> None:
    record = memory_report.record(experiment)
    assert record
    assert record["allocated_gib"] == pytest.approx(sum(record["parts_gib"].values()), abs=0.01)
    assert record["total_gib"] == pytest.approx(record["allocated_gib"] + memory.CONTEXT_GIB, abs=0.01)
    assert record["verdict"] == "fits"
    assert record["host_gib"].keys() >= {"processes", "loading"}
    assert memory_report.record(assembled("model=tiny", "hw=cpu")) is None


def test_planned_beside_measured(experiment: Experiment, here: Path) -> None:
    """A run that needed a tenth less than planned: +11.1 %, in result.json, in the closing table and for MLflow."""
    planned = memory.plan(experiment)
    assert planned is not None
    run = RunDir(here)
    rundir.write_json(run.result, {**RESULT, "peak_memory_gib": planned.allocated_gib * 0.9})
    memory_report.compare(experiment, run)
    result = json.loads(run.result.read_text())
    assert result["planned_memory_gib"] == pytest.approx(planned.allocated_gib, abs=0.001)
    assert result["memory_error"] == pytest.approx(1 / 0.9 - 1, abs=1e-4)
    assert ("planned memory", f"{planned.allocated_gib:.2f} GiB (+11.1% off)") in progress.table(result)
    assert result["memory_error_percent"] == pytest.approx(11.11)
    assert {"planned_memory_gib", "memory_error", "memory_error_percent"} < set(SUMMARY)


def test_nothing_is_compared_on_the_cpu(here: Path) -> None:
    run = RunDir(here)
    rundir.write_json(run.result, {**RESULT, "peak_memory_gib": 1.0})
    memory_report.compare(assembled("model=tiny", "hw=cpu"), run)
    assert "planned_memory_gib" not in json.loads(run.result.read_text())
