"""`python -m sft_exp rerun RUN`: the same run again from what was recorded, and whether its result is the same."""

import argparse
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from sft_exp import prepare, progress, record, request, run
from sft_exp.compare import facts, find
from sft_exp.compare.facts import Facts
from sft_exp.errors import ConfigError, RunFailed
from sft_exp.machine import Machine, look
from sft_exp.parser import Parser
from sft_exp.request import Request, flatten, to_plain
from sft_exp.schema import Device, Tracking

NOISE = 0.01
"""Largest relative difference of a step's loss that is put down to the order in which a GPU adds up."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Which run. Raises ConfigError where it cannot be read."""
    parser = Parser("rerun", __doc__)
    parser.add_argument("run", metavar="RUN", help="run folder, or its name below outputs/")
    parser.add_argument("--anyway", action="store_true", help="run also on data that has changed")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"), help="where the run is looked for by name")
    return parser.parse_args(argv)


def show(argv: Sequence[str]) -> None:
    """Name what has changed, run, compare. Raises ConfigError if the data has, RunFailed if the losses differ."""
    asked = arguments(argv)
    before = _recorded(asked)
    again = _request(before, argv)
    machine = look()
    fingerprint = prepare.prepare(again.experiment).fingerprint
    changes = _changes(before, again, machine, fingerprint)
    progress.show(f"again    {before.run.path}")
    for line in changes:
        progress.show(f"changed  {line}")
    if not changes:
        progress.show("changed  nothing: code, data, versions and machine are those of the first time")
    if fingerprint != before.data.get("fingerprint") and not asked.anyway:
        raise ConfigError(
            f"the data of {before.run.path} has changed since ({before.data.get('fingerprint')} -> {fingerprint}): "
            "bring the old files back, or add --anyway."
        )
    after = facts.read(run.run(again).path)
    sentence, same = verdict(before, after, exact=again.experiment.hw.device is Device.cpu)
    if not same:
        raise RunFailed(f"{sentence} {'Changed since: ' + '; '.join(changes) + '.' if changes else ''}".rstrip())
    progress.show(f"\n{sentence}")


def _recorded(asked: argparse.Namespace) -> Facts:
    folders = find.runs([asked.run], asked.outputs.expanduser().absolute(), Tracking())
    if len(folders) != 1:
        raise ConfigError(f"{asked.run} holds {len(folders)} runs: give one of them, such as {folders[0]}.")
    found = facts.read(folders[0])
    if not found.data or not any("train/loss" in row for row in found.rows):
        raise ConfigError(
            f"{found.run.path} has logged no loss to compare with ({found.state}): start it anew instead."
        )
    return found


def _request(before: Facts, argv: Sequence[str]) -> Request:
    """The recorded request as a run of its own, with nothing of its folder, sweep or resume."""
    recorded = request.read(before.run.request)
    experiment = dataclasses.replace(recorded.experiment, resume=None)
    experiment.tracking.tags = {**experiment.tracking.tags, "rerun_of": before.name}
    return dataclasses.replace(
        recorded, experiment=experiment, folder=None, parent_run_id=None, title=None, port=None, argv=["rerun", *argv]
    )  # fmt: skip


def _changes(before: Facts, again: Request, machine: Machine, fingerprint: str) -> list[str]:
    """What is not as it was, one line each."""
    now, diff = record.collect(machine, [], [])
    config = flatten(to_plain(again.experiment))
    ours = facts.identity(now, diff, {"fingerprint": fingerprint}, config)
    theirs = before.identity()
    keys = dict.fromkeys([*theirs, *ours])
    pairs = [(key, theirs.get(key, "none"), ours.get(key, "none")) for key in keys]
    return [f"{key}: {old} -> {new}" for key, old, new in pairs if old != new]


def verdict(before: Facts, after: Facts, *, exact: bool) -> tuple[str, bool]:
    """One sentence about the losses of both, and whether they count as the same: bit for bit, or within `NOISE`."""
    first, second = _losses(before), _losses(after)
    if first.keys() != second.keys():
        return f"the runs have logged different steps: {len(first)} against {len(second)} losses.", False
    differing = [step for step in first if first[step] != second[step] and not _both_nan(first[step], second[step])]
    if not differing:
        return f"The same: all {len(first)} logged losses are equal bit for bit.", True
    largest = max(abs(second[step] - first[step]) / abs(first[step] or 1) for step in differing)
    name, step = differing[0]
    told = (
        f"{len(differing)} of {len(first)} logged losses differ, first {name} at step {step}: "
        f"{first[differing[0]]} against {second[differing[0]]}; by {largest:.2g} of the loss at most"
    )
    if not exact and largest <= NOISE:
        return f"The same within a GPU's noise of {NOISE:.0%}: {told}.", True
    return f"not the same: {told}.", False


def _both_nan(first: float, second: float) -> bool:
    return math.isnan(first) and math.isnan(second)


def _losses(run_facts: Facts) -> dict[tuple[str, int], float]:
    """Training and evaluation losses by name and step."""
    return {
        (name, int(row["step"])): float(row[name])
        for row in run_facts.rows
        for name in ("train/loss", "eval/loss", "test/loss")
        if name in row
    }
