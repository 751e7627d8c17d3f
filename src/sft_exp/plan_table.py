"""`plan -m`: one table over the combinations of a sweep, which answers what can run on a machine."""

from sft_exp import check, memory, memory_advice, memory_report
from sft_exp.machine import Machine, look
from sft_exp.memory import Verdict
from sft_exp.request import Request
from sft_exp.resolve import resolve
from sft_exp.run import batch
from sft_exp.schema import Experiment
from sft_exp.sweeps import estimate, ready

HEAD = ("micro batch", "GiB per GPU", "of", "host GiB", "verdict", "cheapest change that fits, or problem")


def compare(requests: list[Request]) -> None:
    """Print one row for each combination."""
    machine = look()
    keys = varied(requests)
    rows = [(*keys, *HEAD), *((*values(request, keys), *row(request, machine)) for request in requests)]
    widths = [max(len(cells[i]) for cells in rows) for i in range(len(rows[0]))]
    for cells in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    # Each job gets its share of the machine, as when the sweep is run.
    print(f"\n{estimate.words([ready.shared(request.experiment, machine) for request in requests], machine)}")
    print("\nAll of one combination: the same command without -m and with one value for each key.")


def varied(requests: list[Request]) -> list[str]:
    """Keys whose values differ between the requests, in the order of the command line."""
    found: dict[str, set[str]] = {}
    for request in requests:
        for word in request.overrides:
            key, _, value = word.partition("=")
            found.setdefault(key, set()).add(value)
    return [key for key, seen in found.items() if len(seen) > 1]


def values(request: Request, keys: list[str]) -> list[str]:
    """The request's own values of the keys."""
    pairs = dict(word.partition("=")[::2] for word in request.overrides)
    return [pairs.get(key, "").strip("'\"") for key in keys]


def row(request: Request, machine: Machine) -> tuple[str, ...]:
    """Cells of one combination, under `HEAD`."""
    experiment = resolve(request.experiment, machine)
    problems = check.check(experiment, machine, plan=True).problems
    if problems:
        return ("-", "-", "-", "-", "refused", problems[0])
    return memory_cells(experiment)


def memory_cells(experiment: Experiment) -> tuple[str, ...]:
    """Micro batch, memory per GPU, memory of the card, host memory, verdict and advice."""
    cut = batch(Request(experiment=experiment))
    plan = memory.plan(experiment)
    if plan is None:
        return (f"{cut.micro} x {cut.accumulation}", "-", "-", "-", "not planned", f"none: {memory_report.NO_PLAN}")
    of = "unknown" if plan.memory_gib is None else f"{plan.memory_gib:g}"
    advice = [] if plan.verdict in (Verdict.fits, Verdict.unknown) else memory_advice.advise(experiment, limit=1)
    return (
        f"{cut.micro} x {cut.accumulation}", f"{plan.total_gib:.1f}", of, f"{plan.host_gib:.0f}", plan.verdict.value,
        " ".join(change.words for change in advice[0].changes) if advice else "",
    )  # fmt: skip
