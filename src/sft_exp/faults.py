"""What went wrong in a process of a run: written by the process itself, read by its parent."""

import re
import signal
import time
import traceback
from typing import Any

from sft_exp import request as requests
from sft_exp import rundir
from sft_exp.errors import ConfigError, RunFailed, SftExpError
from sft_exp.rundir import RunDir

TAIL_LINES = 15


def write(run: RunDir, process: str, error: BaseException) -> None:
    """Leave a fault for the parent."""
    mistake = isinstance(error, ConfigError)
    fault = {
        "process": process,
        "time": time.time(),
        "mistake": mistake,
        "message": str(error) if isinstance(error, SftExpError) else f"{type(error).__name__}: {error}",
        "traceback": "" if isinstance(error, SftExpError) else "".join(traceback.format_exception(error)),
    }
    rundir.write_json(run.faults / f"{process}.json", fault)


def first(run: RunDir) -> dict[str, Any] | None:
    """The earliest fault: later ones are mostly ranks that miss the first."""
    found = [rundir.read_json(file) for file in run.faults.glob("*.json")]
    return min(found, key=lambda fault: float(fault["time"]), default=None)


def launcher(number: int) -> str:
    """Name of the launcher's process and log on a machine."""
    return f"launcher{number or ''}"


def to_error(run: RunDir, process: str, code: int | None) -> SftExpError:
    """The error that tells the user how a process ended."""
    fault = first(run)
    died = _died(run, process) if process.startswith(launcher(0)) else None
    if fault and fault["mistake"]:
        return ConfigError(*str(fault["message"]).split("\n"))
    # A rank that was killed leaves no fault; those of the others then only say that they miss it.
    killed = died is not None and not (run.faults / f"rank{died[0]}.json").exists()
    if fault and not killed:
        return RunFailed(
            f"{fault['process']} failed with {fault['message'].splitlines()[0][:300]}\n{fault['traceback']}"
            f"logs: {run.logs}"
        )
    if died:
        rank, number = died
        process, code = f"rank{rank}", number
    return RunFailed(f"{process} {_ending(code)}; {_last_words(run, process)}\nlogs: {run.logs}")


def _last_words(run: RunDir, process: str) -> str:
    text = tail(run, process)
    return f"the end of its log:\n{text}" if text.strip() else "its log is empty"


def _died(run: RunDir, process: str) -> tuple[int, int] | None:
    """Rank, counted over all machines, and exit code of the process that a launcher names as the first that failed."""
    log = run.logs / f"{process}.log"
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    elastic = re.findall(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)", text)
    if not elastic:
        return None
    code, local = map(int, elastic[-1])  # a resumed run adds to the log
    return _first_rank(run, process) + local, code


def _first_rank(run: RunDir, process: str) -> int:
    """Lowest rank of the machine whose launcher this is."""
    number = int(process.removeprefix(launcher(0)) or 0)
    return number * (requests.read(run.request).experiment.hw.processes or 1) if number else 0


def _ending(code: int | None) -> str:
    if code is None:
        return "had to be stopped"
    if code < 0:
        hint = " (out of host memory?)" if -code == signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-code).name}{hint}"
    return f"ended with exit code {code}"


def tail(run: RunDir, process: str) -> str:
    """Last lines of a log."""
    log = run.logs / f"{process}.log"
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return "\n".join(text.splitlines()[-TAIL_LINES:])
