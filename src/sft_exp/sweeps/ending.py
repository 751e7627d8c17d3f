"""How a job went, read from what it has left: exit code, status file, faults, its log."""

import signal
import time
from pathlib import Path

from sft_exp import faults, rundir
from sft_exp.sweeps.job import Job

MESSAGE = "sft_exp: "
"""How a sentence for the user begins in a job's log."""


def note(job: Job, code: int, log: Path) -> None:
    """Set the job's state and reason. What a killed job could not record itself is recorded here."""
    status = rundir.read_json(job.run.status) if job.run.status.exists() else {}
    state = str(status.get("state", ""))
    if code == 0:
        job.end("finished")
    elif state in ("failed", "pruned", "stopped", "refused"):
        job.end(state, str(status.get("reason") or f"exit code {code}"))
    elif code == 2 and not status:
        job.end("refused", sentences(log) or "exit code 2")
    else:
        job.end("failed", died(job, code, log))
        if status:
            rundir.write_json(job.run.status, {**status, "state": "failed", "reason": job.reason, "ended": time.time()})


def died(job: Job, code: int, log: Path) -> str:
    """Why a job ended that has not said so itself."""
    fault = faults.first(job.run)
    if code < 0:
        hint = " (out of host memory?)" if -code == signal.SIGKILL else ""
        return f"the job's own process was killed by {signal.Signals(-code).name}{hint}"
    if fault:
        return f"{fault['process']} failed with {fault['message']}"
    return sentences(log) or f"exit code {code}; log: {log}"


def sentences(log: Path) -> str:
    """What the job has told the user at its end."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    found = [line.removeprefix(MESSAGE) for line in text.splitlines() if line.startswith(MESSAGE)]
    return " ".join(found)
