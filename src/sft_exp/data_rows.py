"""`python -m sft_exp data rows RUN`: the text that a run trained in one step, or its rows that stand out."""

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sft_exp import request, rowlog, rundir
from sft_exp.errors import ConfigError
from sft_exp.parser import Parser
from sft_exp.preview import on_terminal
from sft_exp.rundir import RunDir

if TYPE_CHECKING:
    from sft_exp.rowlog import Records

TOP = 10
"""Rows shown of a whole run."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Run folder, step and number of rows. Raises ConfigError where they cannot be read."""
    parser = Parser("data rows", __doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="run folder below outputs/")
    parser.add_argument("--step", type=int, metavar="K", help="only the rows of this step, all of them")
    parser.add_argument(
        "--top",
        type=int,
        metavar="N",
        help=f"the N rows with the highest loss; without --step the {TOP} that stand out",
    )
    found = parser.parse_args(argv)
    if found.top is not None and found.top < 1:
        raise ConfigError(f"--top={found.top} shows nothing: give 1 or more.")
    return found


def show(argv: Sequence[str]) -> None:
    """Print the rows, highest first. Raises ConfigError where the run or its rows are not there."""
    asked = arguments(argv)
    if not (asked.run / "request.json").is_file():
        raise ConfigError(f"{asked.run} is no run folder (it has no request.json): give one from outputs/.")
    run = RunDir(asked.run)
    found, title = _select(run, asked)
    prepared = _load(run, [int(row) for row in found["row"]])
    tokenizer = _tokenizer(run)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that does not know UTF-8
    colour = on_terminal()
    print(title)
    for number, record in enumerate(found, start=1):
        row = prepared[int(record["row"])]
        print(f"\n{_head(number, record, row)}\n{_text(row, tokenizer, colour)}")


def _select(run: RunDir, asked: argparse.Namespace) -> "tuple[Records, str]":
    """Records to show, and a line that says which they are."""
    rows = rowlog.read(run.rows)
    if not len(rows):
        raise ConfigError(
            f"{run.path} has no record of its rows: one is made at the first logged step, and not with "
            "packing_strategy=wrapped."
        )
    first, last = int(rows["step"][0]), int(rows["step"][-1])
    if asked.step is None:
        return _of_run(rows, asked.top or TOP)
    of_step = rows[rows["step"] == asked.step]
    if not len(of_step):
        raise ConfigError(f"{run.path} has no rows of step {asked.step}: it recorded steps {first} to {last}.")
    return _of_step(of_step, asked.top)


def _of_run(rows: "Records", top: int) -> "tuple[Records, str]":
    """Each row once. Loss falls in training, so a row is compared with those that were trained at the same time."""
    import numpy as np

    ordered = _highest(rows, rows["loss"] - rowlog.typical_loss(rows))
    once = ordered[np.sort(np.unique(ordered["row"], return_index=True)[1])][:top]
    which = f"the {len(once)} furthest above the median loss at their time"
    return once, f"steps {rows['step'][0]} to {rows['step'][-1]}, {len(rows)} rows trained: {which}"


def _of_step(rows: "Records", top: int | None) -> "tuple[Records, str]":
    tokens = rows["tokens"].astype(float)
    mean = float((rows["loss"] * tokens)[tokens > 0].sum() / max(tokens.sum(), 1))
    chosen = _highest(rows, rows["loss"])[:top]
    shown = "" if len(chosen) == len(rows) else f", the {len(chosen)} with the highest loss"
    head = f"step {rows['step'][0]}, {len(rows)} rows, loss {mean:.4f} over {int(tokens.sum())} tokens"
    return chosen, head + shown


def _highest(rows: "Records", by: Any) -> "Records":
    """Highest first, and before it losses that are no numbers; last, rows without trained tokens."""
    import numpy as np

    rank = np.where(rows["tokens"] == 0, -np.inf, np.where(np.isfinite(rows["loss"]), by, np.inf))
    return rows[np.argsort(-rank, kind="stable")]


def _load(run: RunDir, wanted: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Prepared rows by their position, from the mapped file."""
    import pyarrow as pa

    folder = Path(rundir.read_json(run.data)["folder"]) if run.data.is_file() else Path("-")
    file = folder / "train" / "data.arrow"
    if not file.is_file():
        raise ConfigError(
            f"the prepared rows of {run.path} are gone from {folder}: prepare the same data again, which makes them "
            "under the same name."
        )
    with pa.memory_map(str(file)) as mapped:
        table = pa.ipc.open_stream(mapped).read_all()
        if max(wanted) >= table.num_rows:
            raise ConfigError(f"{run.path} trained row {max(wanted)}, and {file} has {table.num_rows} only.")
        return {at: table.slice(at, 1).to_pylist()[0] for at in set(wanted)}


def _tokenizer(run: RunDir) -> Any:
    from sft_exp.tokenizer import load_tokenizer

    return load_tokenizer(request.read(run.request).experiment.model)


def _head(number: int, record: Any, row: dict[str, Any]) -> str:
    length = len(row["input_ids"])
    tokens = f"{record['tokens']} of {length} tokens trained"
    return f"{number}. {row['row']}  loss {record['loss']:.4f}  {tokens}  step {record['step']}"


def _text(row: dict[str, Any], tokenizer: Any, colour: bool) -> str:
    from sft_exp.preview import ansi, pieces

    return ansi(pieces(row["input_ids"], row["labels"], tokenizer), colour).rstrip("\n")
