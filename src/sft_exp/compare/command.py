"""`python -m sft_exp compare SWEEP|RUN RUN ...|FILTER`: what differs, what it did, and whether a ranking is honest."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sft_exp import progress, rundir, tracking_store
from sft_exp.compare import facts, find, page, text
from sft_exp.compare.comparison import compare
from sft_exp.compare.facts import Facts
from sft_exp.errors import ConfigError
from sft_exp.parser import Parser
from sft_exp.preview import on_terminal
from sft_exp.resolve import store_uri
from sft_exp.schema import Tracking


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """What to compare and by what. Raises ConfigError where it cannot be read."""
    parser = Parser("compare", __doc__)
    parser.add_argument(
        "targets", nargs="+", metavar="RUN", help="run folder, sweep folder, their names, or a filter of MLflow"
    )
    parser.add_argument("--metric", default="eval/loss", help="what settings are ranked by (default: eval/loss)")
    parser.add_argument("--anyway", action="store_true", help="rank also what is no fair comparison")
    parser.add_argument("--out", type=Path, help="folder for compare.html and compare.csv")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"), help="where runs are looked for by name")
    parser.add_argument("--tracking-uri", help="MLflow store (default: MLFLOW_TRACKING_URI, else the one in outputs)")
    parser.add_argument("--experiment", default=Tracking().experiment, help="MLflow experiment of a filter")
    return parser.parse_args(argv)


def show(argv: Sequence[str]) -> None:
    """Print the comparison and write its page and table. Raises ConfigError where there is nothing to compare."""
    asked = arguments(argv)
    outputs = asked.outputs.expanduser().absolute()
    tracking = Tracking(uri=asked.tracking_uri, experiment=asked.experiment)
    tracking.uri = store_uri(tracking, str(outputs))
    runs = [facts.read(folder) for folder in find.runs(asked.targets, outputs, tracking)]
    if len(runs) < 2:
        raise ConfigError(f"{runs[0].run.path} is the only run found: give two or more runs, or a sweep.")
    comparison = compare(runs, asked.metric, anyway=asked.anyway)
    folder = asked.out or _folder(runs, outputs)
    html = page.page(_title(asked.targets), comparison)
    files = {"compare.html": html, "compare.csv": text.as_csv(comparison)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        rundir.write_text(folder / name, content)
    _log(runs, [folder / name for name in files])
    # Last, so that `compare ... | head` loses nothing.
    for line in [*text.lines(comparison, on_terminal()), *(f"report   {folder / name}" for name in files)]:
        progress.show(line)


def _title(targets: Sequence[str]) -> str:
    names = [Path(target).name or target for target in targets]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _folder(runs: Sequence[Facts], outputs: Path) -> Path:
    """The sweep's own folder, else a new dated one."""
    parents = {run.run.path.parent for run in runs}
    if len(parents) == 1 and ((parent := parents.pop()) / "sweep.json").is_file():
        return parent
    return rundir.dated(outputs, "compare")


def _log(runs: Sequence[Facts], files: Sequence[Path]) -> None:
    """Give the report to the sweep's run in MLflow, if all runs belong to one."""
    parents = {str(run.request.get("parent_run_id") or "") for run in runs}
    tracked: dict[str, Any] = {}
    if len(parents) == 1 and (parent := parents.pop()) and runs[0].run.tracking.is_file():
        tracked = rundir.read_json(runs[0].run.tracking)
    if not tracked:
        return
    settings = Tracking(uri=str(tracked["uri"]), experiment=runs[0].value("tracking.experiment"))
    if problem := tracking_store.unreachable(settings):
        progress.show(f"note: the report is not in MLflow: {problem}")
        return
    client, _ = tracking_store.client(settings)
    for file in files:
        client.log_artifact(parent, str(file), "compare")
