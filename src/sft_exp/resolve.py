"""From what was asked to what will run: every `auto` and null that the machine or arithmetic decides."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from sft_exp import batch, hw, memory, zero_file
from sft_exp.machine import Machine
from sft_exp.memory import Verdict
from sft_exp.schema import (
    TRAINING_TEMPLATE,
    AdapterKind,
    Dataset,
    DatasetKind,
    Device,
    Dtype,
    Eval,
    Experiment,
    Model,
    Precision,
    Shape,
    Tracking,
    TrackingKind,
    Weights,
)

AUTO = "auto"


def resolve(experiment: Experiment, machine: Machine) -> Experiment:
    """The experiment as it will run; values that make no sense are left as they are, for `check` to name."""
    profile = hw.resolve(experiment.hw, machine, experiment.train.global_batch)
    precision = hw.precision(experiment.train, profile)
    attention = hw.attention(experiment.model, profile, precision)
    model = dataclasses.replace(experiment.model, dtype=dtype(experiment, precision), attention=attention)
    train = dataclasses.replace(
        experiment.train, precision=precision, optimizer=optimizer(experiment, precision),
        master_weights=master_weights(experiment, model.dtype),
    )  # fmt: skip
    # An empty one stays, for a rule to name: as a path it would be the current folder.
    given = experiment.outputs.strip() and Path(experiment.outputs).expanduser().absolute()
    outputs = str(given)
    decided = dataclasses.replace(
        experiment, model=_model(model), hw=profile, train=train, outputs=outputs,
        dataset=_dataset(experiment.dataset), zero=zero_file.folded(experiment.zero),
        eval=_eval(experiment.eval, profile.device, experiment.model),
        tracking=dataclasses.replace(experiment.tracking, uri=store_uri(experiment.tracking, outputs)),
    )  # fmt: skip
    return _with_micro(decided, _micro(decided))


def dtype(experiment: Experiment, precision: Precision) -> Dtype:
    """Type of the stored weights.

    Weights that an optimizer moves are kept in fp32, because bf16 swallows small updates (at 1e-5 only 15 % of the
    weights change in ten steps); DeepSpeed keeps its own fp32 copy, so 16-bit weights are right under it. Frozen
    weights under an adapter are kept in the type they are computed in.
    """
    if experiment.model.dtype is not Dtype.auto:
        return experiment.model.dtype
    if experiment.adapter.kind is AdapterKind.full and experiment.zero.stage == 0:
        return Dtype.float32
    return {Precision.fp16: Dtype.float16, Precision.bf16: Dtype.bfloat16}.get(precision, Dtype.float32)


def master_weights(experiment: Experiment, stored: Dtype) -> bool:
    """Whether the optimizer has fp32 copies: where nothing else keeps 16-bit weights from losing small updates."""
    if experiment.train.master_weights is not None:
        return experiment.train.master_weights
    return can_have_masters(experiment, stored)


def can_have_masters(experiment: Experiment, stored: Dtype) -> bool:
    """DeepSpeed has copies of its own, adapters are trained in fp32, and torch's loss scaler knows no copies."""
    full = experiment.adapter.kind is AdapterKind.full
    return full and experiment.zero.stage == 0 and stored is Dtype.bfloat16


def optimizer(experiment: Experiment, precision: Precision) -> str:
    """Name of the optimizer.

    The fused AdamW takes no memory of its own in a step and is three times faster on the CPU. It leaves steps out by
    itself when fp16 overflows, so that neither the log nor the schedule would know; DeepSpeed has a scaler of its own.
    """
    if experiment.train.optimizer != AUTO:
        return experiment.train.optimizer
    scaled = precision is Precision.fp16 and experiment.zero.stage == 0
    return "adamw_torch" if scaled else "adamw_torch_fused"


def _micro(experiment: Experiment) -> int | None:
    """The micro batch asked for, else the largest that surely fits: the same profile gives the same one everywhere."""
    train, processes = experiment.train, experiment.hw.ranks
    if train.micro_batch is not None or batch.problem(train.global_batch, None, processes):
        return train.micro_batch
    share = train.global_batch // processes
    sizes = [size for size in range(share, 0, -1) if share % size == 0]
    plans = {size: memory.plan(_with_micro(experiment, size)) for size in sizes}
    if any(plan is None or plan.verdict is Verdict.unknown for plan in plans.values()):
        return batch.split(train.global_batch, None, processes).micro
    return next((size for size, plan in plans.items() if plan and plan.verdict is Verdict.fits), 1)


def _eval(settings: Eval, device: Device, model: Model) -> Eval:
    """How much is looked at: on the CPU so little that a short run does not consist of it."""
    few, asked = device is Device.cpu, bool(settings.metrics) or settings.stop_degenerate
    probes = settings.probes if settings.probes is not None else model.weights is not Weights.random or asked
    prompts = settings.prompts and str(Path(settings.prompts).expanduser().absolute())
    return dataclasses.replace(
        settings, probes=probes, prompts=prompts,
        count=settings.count if settings.count is not None else 16 if few else None,
        tokens=settings.tokens if settings.tokens is not None else 48 if few else 128,
        answers=settings.answers if settings.answers is not None else 8 if few else 32,
    )  # fmt: skip


def _with_micro(experiment: Experiment, size: int | None) -> Experiment:
    return dataclasses.replace(experiment, train=dataclasses.replace(experiment.train, micro_batch=size))


def store_uri(tracking: Tracking, outputs: str) -> str | None:
    """Address of the tracking store: as configured, else MLFLOW_TRACKING_URI, else a file in `outputs`."""
    if tracking.kind is TrackingKind.none:
        return tracking.uri
    return tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{outputs}/mlflow.db"


def _model(model: Model) -> Model:
    """Paths made absolute; a path beats the option's GGUF file, and a local folder's own numbers beat the option's."""
    if model.path and model.gguf:
        model = dataclasses.replace(model, gguf=None, name=None, shape=Shape())
    return dataclasses.replace(
        model,
        shape=_shape(model),
        path=_absolute_folder(model.path),
        tokenizer=_absolute_folder(model.tokenizer),
        chat_template=_absolute_template(model.chat_template),
    )


def _shape(model: Model) -> Shape:
    file = Path(model.path or "").expanduser() / "config.json"
    if model.path is None or model.weights is Weights.random or not file.is_file():
        return model.shape
    try:
        numbers = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return model.shape
    rope = numbers.get("rope_parameters") or {}
    known = {"rope_theta": rope.get("rope_theta"), "tie_word_embeddings": False, **numbers}
    return Shape(**{field.name: known.get(field.name) for field in dataclasses.fields(Shape)})


def _absolute_folder(path: str | None) -> str | None:
    """A folder on disk as an absolute path, since the ranks may run elsewhere; a hub id as it is."""
    if path and (path.startswith(("/", ".", "~")) or Path(path).exists()):
        return str(Path(path).expanduser().absolute())
    return path


def _absolute_template(path: str | None) -> str | None:
    if not path or path == TRAINING_TEMPLATE:
        return path
    return str(Path(path).expanduser().absolute())


def _dataset(dataset: Dataset) -> Dataset:
    parts = {
        name: dataclasses.replace(part, path=_absolute_data(part.path, part.kind))
        for name, part in dataset.mixture.items()
    }
    return dataclasses.replace(dataset, path=_absolute_data(dataset.path, dataset.kind), mixture=parts)


def _absolute_data(path: Any, kind: DatasetKind) -> Any:
    """Files and globs as absolute paths; hub ids and shipped files as they are, and what is no path too."""
    if isinstance(path, list):
        return [_absolute_data(item, kind) for item in path]
    if not isinstance(path, str) or not path or path.startswith("sample:"):
        return path
    return _absolute_folder(path) if kind is DatasetKind.hub else str(Path(path).expanduser().absolute())
