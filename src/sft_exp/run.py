"""The story of one run, as its parent process lives it: check, folder, prepare, launch, track, record."""

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from sft_exp import (
    card,
    check,
    faults,
    launch,
    machines,
    member,
    memory_report,
    metrics,
    preflight,
    record,
    resume,
    rundir,
    zero,
)  # fmt: skip
from sft_exp.batch import Batch
from sft_exp.errors import ConfigError, RunFailed, RunPruned, RunStopped
from sft_exp.launch import Processes
from sft_exp.machine import Machine, look
from sft_exp.machines import First
from sft_exp.progress import Progress
from sft_exp.request import Request
from sft_exp.resolve import resolve
from sft_exp.rundir import RunDir
from sft_exp.tracking import Tracker

HELD = (signal.SIGINT, signal.SIGTERM)
"""Signals that wait while a run folder is made."""


def run(request: Request) -> RunDir:
    """Train once. Raises ConfigError before anything is lost, RunFailed or RunStopped with the run folder's name."""
    machine = look()
    if request.experiment.hw.machines > 1 and (number := machines.index()):
        return member.run(request, machine, number)
    # Open before there is a folder: an address that is not this machine's leaves nothing.
    with machines.first(request.experiment.hw) as line:
        return _run(request, machine, line)


def _run(request: Request, machine: Machine, line: First | None) -> RunDir:
    """The run on this machine, the first of several if there is a line to others."""
    started = time.time()
    with launch.stop_on_signal():
        request, run = _folder(request, machine)
    processes, tracker, progress = Processes(run), Tracker(request, run), Progress(request, run)
    earlier, offset = metrics.read_rows(run.metrics)  # of a resumed run: shown before, perhaps not sent
    outcome, message = "failed", "ended before its first step"
    try:
        with launch.stop_on_signal():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
            facts, diff = record.collect(machine, request.argv, request.overrides)
            argv, env = _write_records(request, run, facts, diff, _port(request))
            progress.begin(argv)
            if line:
                line.gather(str(run.path), request.overrides)
            # The ranks import their libraries while the data is prepared; they wait for its report before they go on.
            processes.start(_ranks_name(request), argv, env)
            processes.start("prepare", [sys.executable, "-m", "sft_exp.prepare", str(run.path)], env)
            _wait_for_data(run, processes, progress, line)
            tracker.open(_tags(request, run, facts), _derived(request), _artifacts(run))
            tracker.send(earlier)
            _follow(run, processes, tracker, progress, _ranks_name(request), offset, line)
            memory_report.compare(request.experiment, run)
            card.leave(run)
        outcome, message = "finished", ""
    except ConfigError as error:
        outcome, message = "refused", str(error)
        raise
    except RunPruned as error:
        outcome, message = "pruned", str(error)
        raise
    except (RunStopped, KeyboardInterrupt) as error:
        outcome, message = "stopped", str(error)
        raise
    except RunFailed as error:
        message = str(error)
        raise
    finally:
        if line:
            line.end(outcome, message)
        processes.end()
        _finish(run, tracker, progress, outcome, message, started)
    return run


def _port(request: Request) -> int:
    """Port of the ranks: as all machines know it, as a sweep has chosen it, or a free one."""
    return machines.common_port(request.experiment.hw) or request.port or launch.free_port()


def _folder(request: Request, machine: Machine) -> tuple[Request, RunDir]:
    """Checked request and its run folder: a new one, or the one that is resumed."""
    if request.experiment.resume:
        show(preflight.notes(resume.changed(request).experiment, machine))
        return resume.reopen(request, machine)
    request.experiment = resolve(request.experiment, machine)
    findings = check.check(request.experiment, machine)
    check.refuse(findings)
    show([*findings.warnings, *preflight.notes(request.experiment, machine)])
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)  # from here to where the folder's end is taken care of
    try:
        return request, rundir.create(request)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
        raise


def show(notes: list[str]) -> None:
    """Print what deserves a word."""
    for note in notes:
        print(f"note: {note}", flush=True)


def _write_records(
    request: Request, run: RunDir, facts: dict[str, Any], diff: str, port: int
) -> tuple[list[str], dict[str, str]]:
    argv = launch.command(request.experiment, run.path, port)
    rundir.write_json(
        run.command,
        {
            "command": argv,
            "environment": record.environment(launch.added(request.experiment, os.environ, port)),
            "deepspeed": deepspeed(request),
        },
    )
    rundir.write_json(run.record, {**facts, "memory_plan": memory_report.record(request.experiment)})
    rundir.write_text(run.diff, diff)
    if hosts := launch.hostfile(request.experiment):
        rundir.write_text(run.path / launch.HOSTFILE, hosts)
    rundir.write_text(run.freeze, record.freeze())
    rundir.write_json(run.status, {"state": "running", "pid": os.getpid(), "started": time.time()})
    return argv, launch.environment(request.experiment, os.environ, port)


def batch(request: Request) -> Batch:
    """Batch arithmetic of a resolved request."""
    train, processes = request.experiment.train, request.experiment.hw.ranks
    micro = train.micro_batch or 1
    return Batch(micro, train.global_batch // (micro * processes), processes)


def deepspeed(request: Request) -> dict[str, Any] | None:
    """DeepSpeed configuration of a resolved request."""
    return zero.of(request.experiment)


def _ranks_name(request: Request) -> str:
    """Log of the started command: the single rank itself, or the launcher, whose ranks write their own logs."""
    return "rank0" if request.experiment.hw.ranks == 1 else faults.launcher(0)


def _tags(request: Request, run: RunDir, facts: dict[str, Any]) -> dict[str, Any]:
    code, data, experiment = facts["git"], rundir.read_json(run.data), request.experiment
    return {
        "mlflow.source.name": "sft_exp",
        "mlflow.source.git.commit": code.get("commit", ""),
        "git.commit": code.get("commit", "none"),
        "git.branch": code.get("branch", "none"),
        "git.dirty": str(code.get("dirty", "unknown")).lower(),
        "command": " ".join(facts["argv"]),
        "dataset.fingerprint": data["fingerprint"],
        "model.revision": experiment.model.revision or "none",
        "hw": f"{experiment.hw.name} ({experiment.hw.device.value} x {experiment.hw.ranks})",
        "run_folder": str(run.path),
        "grad_norm": "L2 norm of the whole gradient over all ranks, before clipping, of the trainable parameters",
        **{f"version.{name}": version for name, version in facts["versions"].items()},
    }


def _derived(request: Request) -> dict[str, Any]:
    cut = batch(request)
    return {"batch.accumulation": cut.accumulation, "batch.processes": cut.processes}


def _artifacts(run: RunDir) -> list[Path]:
    return [run.config, run.command, run.record, run.freeze, run.diff, run.data, *run.report_pages]


def _wait_for_data(run: RunDir, processes: Processes, progress: Progress, line: First | None) -> None:
    """Return when the data is ready; raise what the preparation or an early rank had to say."""
    while processes.exit_code("prepare") is None and not faults.first(run):
        progress.show([])
        if line:
            line.check()
        time.sleep(0.05)
    if processes.exit_code("prepare") or not run.data.exists():
        raise faults.to_error(run, "prepare", processes.exit_code("prepare"))


def _follow(
    run: RunDir, processes: Processes, tracker: Tracker, progress: Progress, name: str, offset: int, line: First | None
) -> None:
    """Pass metrics on until the ranks have ended; a rank that fails may not leave the others waiting."""
    faulty_since = None
    while True:
        code = processes.exit_code(name)
        offset = _pass_on(run, offset, tracker, progress)
        if faulty_since is None and faults.first(run):
            faulty_since = time.monotonic()
        if code is not None or (faulty_since and time.monotonic() - faulty_since > launch.AFTERMATH_S):
            break
        if line and not run.result.exists():
            line.check()
        time.sleep(0.1)
    if code != 0 or not run.result.exists():
        raise faults.to_error(run, name, code)


def _pass_on(run: RunDir, offset: int, tracker: Tracker, progress: Progress) -> int:
    rows, offset = metrics.read_rows(run.metrics, offset)
    tracker.send(rows)
    progress.show(rows)
    return offset


def _finish(run: RunDir, tracker: Tracker, progress: Progress, outcome: str, message: str, started: float) -> None:
    resumed = resume.restore(run, trained=outcome != "refused")
    if outcome == "refused" and not run.data.exists() and not resumed:
        shutil.rmtree(run.path, ignore_errors=True)
        progress.removed()
        return
    status = {"finished": "FINISHED", "stopped": "KILLED", "pruned": "KILLED"}.get(outcome, "FAILED")
    tags = {"outcome": outcome, **({"reason": message} if message else {})}
    if run.behaviour.exists():
        tags["behaviour"] = rundir.read_json(run.behaviour)["headline"]
    tracker.close(status, tags)
    if outcome == "refused" and resumed:
        return
    rundir.write_json(
        run.status,
        {
            "state": outcome,
            "reason": message,
            "started": started,
            "ended": time.time(),
            "tracking_error": tracker.error,
        },
    )
    progress.end(outcome, tracker)
