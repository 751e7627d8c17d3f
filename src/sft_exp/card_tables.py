"""The tables of a model card: data, metrics, training and code, from the records of a run folder."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sft_exp import schema, trained
from sft_exp.request import Request, flatten, to_plain
from sft_exp.rundir import RunDir
from sft_exp.schema import DatasetKind, Experiment

Rows = Iterator[tuple[str, Any]]
"""Name and value of each line of a table."""
SHOWN = ("adapter", "dataset", "train", "zero")
"""Groups whose values are listed where they are not the default."""
ALWAYS = (
    "adapter.kind", "dataset.loss", "dataset.max_length", "train.epochs", "train.global_batch", "train.learning_rate",
    "train.optimizer", "train.packing", "train.scheduler", "train.seed", "train.warmup", "zero.stage",
)  # fmt: skip
"""Values that are listed in any case."""
HIDDEN = re.compile(r"dataset\.(name|path|mixture\S*|num_proc)|train\.(sample_\w+|logging_steps|save_\w+)")
"""Values of these groups that say nothing about the model, or where files were on the machine."""
OPTIONAL = {
    "Evaluation loss": "eval_loss",
    "Best evaluation loss": "eval_loss_best",
    "Test loss": "test_loss",
    "Tokens per second": "tokens_per_second",
    "MFU": "mfu",
}
"""Name of a metric -> its key in result.json, where it may be null."""
VERSIONS = ("python", "torch", "transformers", "trl", "peft", "datasets", "tokenizers", "deepspeed", "bitsandbytes")


def behaviour(run: RunDir) -> str:
    """What the answers were judged to be, and the numbers behind it."""
    found = trained.behaviour(run)
    if not found:
        return "Its answers were not judged in this run."
    metrics, base = found.get("metrics") or {}, found.get("base") or {}
    parts = [f"Verdict: **{found['verdict']}**", "\n".join(f"- {reason}" for reason in found.get("reasons") or [])]
    if metrics:
        rows = [(name, number(value), number(base.get(name))) for name, value in metrics.items()]
        parts.append(table(rows, head=("Metric", "Trained", "Base")))
    return "\n\n".join(filter(None, parts))


def data(experiment: Experiment, report: Mapping[str, Any]) -> Rows:
    """What was trained on."""
    counts = [f"{report[key]:,}" for key in ("rows", "kept")] + [f"{sum(report['dropped'].values()):,}"]
    splits = [f"{report[f'{split}_rows']:,}" for split in ("train", "eval", "test")]
    why = ", ".join(f"{reason} {count}" for reason, count in sorted(report["dropped"].items()))
    yield "Name", _data_name(experiment)
    yield "Fingerprint", f"`{report['fingerprint']}`"
    yield "Rows read / kept / dropped", " / ".join(counts) + (f" ({why})" if why else "")
    for name, part in report["sources"].items() if experiment.dataset.mixture else ():
        yield f"Part {name}", ", ".join(f"{what} {count:,}" for what, count in part.items())
    yield "Rows for training / evaluation / test", " / ".join(splits)
    yield "Tokens / of them trained", f"{report['tokens']:,} / {report['trained_tokens']:,}"
    yield "Rows cut at the length limit", f"{report['part_truncated']:,}"
    if report["streamed"]:
        yield "Streamed", "yes: the numbers are those of the first rows"


def _data_name(experiment: Experiment) -> str:
    """Names without the folders of a machine."""
    dataset = experiment.dataset
    if dataset.mixture:
        return ", ".join(dataset.mixture)
    paths = dataset.path if isinstance(dataset.path, list) else [dataset.path]
    local = dataset.kind is DatasetKind.files
    return dataset.name or ", ".join(Path(str(path)).name if local else str(path) for path in paths)


def metrics(result: Mapping[str, Any]) -> Rows:
    """How the training went."""
    yield "Steps", f"{result['steps']} of {result['total_steps']}"
    yield "Training loss, first / last", f"{number(result['loss_first'])} / {number(result['loss_last'])}"
    for name, key in OPTIONAL.items():
        if result.get(key) is not None:
            yield name, number(result[key])
    yield "Tokens seen", f"{result['tokens_seen']:,}"
    yield f"Peak memory of the {result['peak_memory_of']}", f"{float(result['peak_memory_gib']):.2f} GiB"
    yield "Parameters / trained", f"{result['parameters']:,} / {result['trainable_parameters']:,}"


def training(asked: Request) -> Rows:
    """Values that are not the schema's default; hardware by its profile."""
    default, hw, model = flatten(to_plain(schema.Experiment())), asked.experiment.hw, asked.experiment.model
    yield "hardware", f"{hw.name}: {hw.processes} x {hw.device.value}"
    yield "model.dtype", model.dtype.value
    if model.special_tokens:
        yield "model.special_tokens", " ".join(f"`{token}`" for token in model.special_tokens)
    for key, value in flatten(to_plain(asked.experiment)).items():
        differs = key.partition(".")[0] in SHOWN and value != default.get(key) and not HIDDEN.fullmatch(key)
        if differs or key in ALWAYS:
            yield key, f"`{value}`"


def code(facts: Mapping[str, Any]) -> Rows:
    """Which code made it."""
    git, versions = facts["git"], facts["versions"]
    changed = " with uncommitted changes" if git.get("dirty") else ""
    yield "git commit", f"`{git['commit']}`{changed}" if git.get("commit") else "none"
    yield "sft_exp", versions.get("sft_exp", "not installed")
    yield "versions", ", ".join(f"{name} {versions[name]}" for name in VERSIONS if name in versions)


def table(rows: Iterable[tuple[Any, ...]], head: tuple[str, ...] = ("", "")) -> str:
    """A table in Markdown; a bar in a cell, as in <|im_end|>, would end it."""
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in (head, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def number(value: Any) -> str:
    """Four significant digits; non-finite numbers are stored as text."""
    return "-" if value is None else f"{float(value):,.4g}" if isinstance(value, int | float) else str(value)
