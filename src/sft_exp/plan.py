"""`plan`: everything that would run, and nothing that runs."""

import dataclasses
import json
import os
import shlex

from sft_exp import check, launch, memory_report, origin, record, resume, rundir, sizes
from sft_exp.machine import look
from sft_exp.request import Request
from sft_exp.resolve import resolve
from sft_exp.run import batch, deepspeed


def show(request: Request) -> None:
    """Print configuration with sources, batch, memory, command, environment and DeepSpeed's JSON."""
    machine = look()
    if request.experiment.resume:
        request = recorded(request)
    experiment = resolve(request.experiment, machine)
    findings = check.check(experiment, machine, plan=True)
    check.refuse(findings)
    rows = origin.changed(request, experiment)
    planned = Request(experiment=experiment)
    folder = rundir.planned(experiment)
    width = max(len(key) for key, _, _ in rows)
    print("configuration (what differs from the schema's defaults)")
    for key, value, source in rows:
        print(f"  {key:<{width}}  {json.dumps(value, ensure_ascii=False)}  [{source}]")
    print(f"\nbatch\n  {batch(planned)}")
    print(f"  {_steps(planned)}")
    if not sizes.missing(experiment.model.shape):
        total, trained = sizes.parameters(experiment.model.shape), sizes.trained_parameters(experiment)
        print(f"\nparameters\n  {total:,} in all, {trained:,} trained ({trained / total:.2%})")
    print("\nmemory\n  " + "\n  ".join(memory_report.lines(experiment)))
    print(f"\ncommand\n  {shlex.join(launch.command(experiment, folder, 29500))}")
    print("\nenvironment")
    for key, value in record.environment(launch.added(experiment, os.environ, 29500)).items():
        print(f"  {key}={value}")
    print(
        f"\nDeepSpeed\n  {_indent(json.dumps(deepspeed(planned), indent=2)) if experiment.zero.stage else 'not used'}"
    )
    here = check.check(experiment, machine)
    for warning in findings.warnings:
        print(f"\nnote: {warning}")
    for problem in here.problems:
        print(f"\nnot on this machine: {problem}")


def recorded(request: Request) -> Request:
    """What `resume=FOLDER` would run: the recorded experiment with what a resumed run may change."""
    found = resume.changed(request)
    return dataclasses.replace(found, overrides=[*found.overrides, *request.overrides])


def _steps(request: Request) -> str:
    train = request.experiment.train
    if train.max_steps is not None:
        return f"{train.max_steps} steps, {train.max_steps * train.global_batch:,} conversations"
    return f"{train.epochs:g} epochs; the number of steps follows from the rows that are kept"


def _indent(text: str) -> str:
    return text.replace("\n", "\n  ")
