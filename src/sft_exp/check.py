"""Cross-field rules: everything that can be known to go wrong before anything is started, all at once.

A problem refuses the run; a warning is shown and recorded. Each is one sentence: what, which value, what to do instead.
Rules of one group stand together, in the order of the groups.
"""

import importlib.util
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sft_exp import batch, checkpoint, extra, rows, sizes, zero
from sft_exp.errors import ConfigError
from sft_exp.explain import closest
from sft_exp.hw import BF16_CAPABILITY, flash_problem
from sft_exp.machine import Machine
from sft_exp.schema import (
    AdapterKind,
    Attention,
    DatasetKind,
    Device,
    Dtype,
    Experiment,
    Launcher,
    Precision,
    TrackingKind,
    Weights,
)

SCHEDULERS = (
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt",
    "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy",
)  # fmt: skip
"""Values of transformers.SchedulerType; a test compares them."""


@dataclass(frozen=True)
class Findings:
    """What `check` found."""

    problems: list[str]
    warnings: list[str]


def check(experiment: Experiment, machine: Machine, *, plan: bool = False) -> Findings:
    """Every problem and warning of a resolved experiment; `plan` leaves out what concerns only this machine."""
    problems = [
        *_model(experiment),
        *_dataset(experiment),
        *_adapter(experiment),
        *_zero(experiment),
        *_precision(experiment),
        *_train(experiment),
        *_tracking(experiment),
    ]
    if not plan:
        problems += [*_machine(experiment, machine), *_outputs(experiment)]
    return Findings(problems, list(_warnings(experiment)))


def refuse(findings: Findings) -> None:
    """Raise all problems as one error."""
    if findings.problems:
        raise ConfigError(*findings.problems)


def _model(experiment: Experiment) -> Iterator[str]:
    model = experiment.model
    if model.path is None and model.gguf is None and model.weights is Weights.pretrained:
        yield "the model has neither path nor weights=random: set model.path=FOLDER_OR_HUB_ID."
    if model.weights is Weights.random and (missing := sizes.missing(model.shape)):
        yield f"model.weights=random needs the architecture's numbers: set model.shape.{missing[0]} ({len(missing)} missing)."
    if sentence := checkpoint.weights_problem(model):
        yield sentence
    if model.chat_template and not Path(model.chat_template).is_file():
        yield f"model.chat_template={model.chat_template} is not there: give a jinja file."
    if model.trust_remote_code and not re.fullmatch(r"[0-9a-f]{40}", model.revision or ""):
        yield (
            f"model.trust_remote_code=true runs code from the hub, which may change under model.revision={model.revision}: "
            f"pin it with model.revision=COMMIT (40 hexadecimal digits)."
        )
    if len(set(model.special_tokens)) < len(model.special_tokens) or not all(model.special_tokens):
        yield f"model.special_tokens={model.special_tokens} holds an empty or repeated token: list each once."


def _dataset(experiment: Experiment) -> Iterator[str]:
    dataset = experiment.dataset
    if dataset.path is None:
        what = "an id such as ORG/NAME" if dataset.kind is DatasetKind.hub else "a file, folder or glob"
        yield f"the dataset has no path: set dataset.path to {what}."
    elif dataset.kind is DatasetKind.files:
        try:
            rows.find_files(dataset.path)
        except ConfigError as error:
            yield from error.problems
    if dataset.max_length < 2:
        yield f"dataset.max_length={dataset.max_length} must be at least 2."
    longest = experiment.model.shape.max_position_embeddings
    if longest and dataset.max_length > longest:
        yield f"dataset.max_length={dataset.max_length} is more than the model's {longest} positions: use {longest} or less."
    for key in ("eval_fraction", "max_bad_fraction"):
        value = getattr(dataset, key)
        if not 0 <= value <= 1 or (key == "eval_fraction" and value == 1):
            yield f"dataset.{key}={value} must be a share between 0 and 1."
    for key in ("limit", "num_proc"):
        value = getattr(dataset, key)
        if value is not None and value < 1:
            yield f"dataset.{key}={value} must be at least 1."


def _adapter(experiment: Experiment) -> Iterator[str]:
    adapter, kind = experiment.adapter, experiment.adapter.kind
    used = {
        AdapterKind.full: (),
        AdapterKind.lora: ("r", "alpha", "dropout", "target_modules"),
        AdapterKind.qlora: ("r", "alpha", "dropout", "target_modules", "quant_type", "double_quant"),
    }[kind]
    for key in ("r", "alpha", "dropout", "target_modules", "quant_type", "double_quant"):
        value = getattr(adapter, key)
        if key in used and value is None:
            yield f"adapter={kind.value} needs adapter.{key}."
        if key not in used and value is not None:
            yield f"adapter.{key}={value} has no effect with adapter={kind.value}: remove it, or use adapter=lora or qlora."
    if adapter.r is not None and adapter.r < 1:
        yield f"adapter.r={adapter.r} must be at least 1."
    if adapter.dropout is not None and not 0 <= adapter.dropout < 1:
        yield f"adapter.dropout={adapter.dropout} must be at least 0 and below 1."
    if adapter.quant_type not in (None, "nf4", "fp4"):
        yield f"adapter.quant_type={adapter.quant_type} is not possible: use nf4 or fp4."
    if kind is AdapterKind.qlora and importlib.util.find_spec("bitsandbytes") is None:
        yield "adapter=qlora needs the package bitsandbytes: pip install bitsandbytes."


def _zero(experiment: Experiment) -> Iterator[str]:
    stage = experiment.zero
    if not 0 <= stage.stage <= 3:
        yield f"zero.stage={stage.stage} is not a stage: use 0, 1, 2 or 3."
    if stage.stage == 0:
        if stage.offload_optimizer or stage.offload_param or stage.extra or stage.pin_memory:
            yield "zero=0 runs without DeepSpeed, so offload, pin_memory and zero.extra have no effect: use zero=2_offload or 3_offload."
        if experiment.hw.launcher is Launcher.deepspeed:
            yield "hw.launcher=deepspeed needs a ZeRO stage: use zero=1, 2 or 3, or hw.launcher=torchrun."
        return
    if stage.offload_param and stage.stage != 3:
        yield f"zero.offload_param needs stage 3 and zero.stage is {stage.stage}: use zero=3_offload."
    if stage.stage == 3 and experiment.model.special_tokens:
        yield "model.special_tokens cannot be added under zero=3, which splits the embedding before it can grow: use zero=2."
    for program in ("g++", "ninja"):
        if shutil.which(program) is None and not (Path(__import__("sys").prefix) / "bin" / program).exists():
            yield f"DeepSpeed compiles small extensions and {program} is not on PATH: install it (apt install g++; pip install ninja)."
    if importlib.util.find_spec("deepspeed") is None:
        yield f"zero={stage.stage} needs the package deepspeed: pip install deepspeed."
    yield from zero.conflicts(stage)


def _precision(experiment: Experiment) -> Iterator[str]:
    hw, precision = experiment.hw, experiment.train.precision
    capability = hw.capability
    if (
        precision is Precision.bf16
        and hw.device is Device.cuda
        and capability is not None
        and capability < BF16_CAPABILITY
    ):
        yield f"train.precision=bf16 is only emulated on hw={hw.name} (compute capability {capability}): use train.precision=fp16."
    if precision is Precision.fp16 and hw.device is Device.cpu:
        yield "train.precision=fp16 needs an NVIDIA GPU (on the CPU it runs without loss scaling and diverges): use fp32 or bf16."
    if experiment.model.attention is Attention.flash_attention_2 and (reason := flash_problem(hw, precision)):
        yield f"model.attention=flash_attention_2 cannot run here: {reason}; use model.attention=sdpa."
    if experiment.model.attention is Attention.flex_attention and hw.device is Device.cpu:
        yield "model.attention=flex_attention has no backward pass on the CPU: use model.attention=sdpa."
    dtype, full = experiment.model.dtype, experiment.adapter.kind is AdapterKind.full
    if precision is Precision.fp16 and dtype is Dtype.float16 and full and experiment.zero.stage == 0:
        yield "model.dtype=float16 with train.precision=fp16 cannot unscale its gradients: use model.dtype=float32 or zero=2."


def _train(experiment: Experiment) -> Iterator[str]:
    train, processes = experiment.train, experiment.hw.processes or 1
    if sentence := batch.problem(train.global_batch, train.micro_batch, processes):
        yield sentence
    for key, least in (("learning_rate", 0.0), ("epochs", 0.0)):
        if not getattr(train, key) > least:
            yield f"train.{key}={getattr(train, key)} must be more than {least:g}."
    for key in (
        "max_steps",
        "logging_steps",
        "eval_steps",
        "save_steps",
        "save_total_limit",
        "early_stopping",
        "sample_tokens",
    ):
        value = getattr(train, key)
        if value is not None and value < 1:
            yield f"train.{key}={value} must be at least 1."
    for key in ("warmup", "weight_decay", "max_grad_norm", "seed"):
        if getattr(train, key) < 0:
            yield f"train.{key}={getattr(train, key)} must not be negative."
    if train.scheduler not in SCHEDULERS:
        yield f"train.scheduler={train.scheduler} is not a schedule.{closest(train.scheduler, SCHEDULERS)} Schedules: {', '.join(SCHEDULERS)}."
    yield from _evaluation(experiment)
    yield from extra.problems(train.extra)


def _evaluation(experiment: Experiment) -> Iterator[str]:
    train = experiment.train
    wants = [name for name in ("early_stopping", "load_best") if getattr(train, name)]
    if experiment.dataset.eval_fraction == 0:
        for name in [*wants, *(["eval_steps"] if train.eval_steps else [])]:
            yield f"train.{name} needs evaluation rows and dataset.eval_fraction is 0: set it to a share such as 0.05."
    for name in wants:
        if train.eval_steps is None:
            yield f"train.{name} compares evaluations: set train.eval_steps."
    for name in ("eval_steps", "save_steps"):
        value = getattr(train, name)
        if value is not None and train.max_steps is not None and value > train.max_steps:
            yield f"train.{name}={value} is never reached in train.max_steps={train.max_steps}: use {train.max_steps} or less, or null."
    if wants and train.eval_steps and train.save_steps and train.save_steps % train.eval_steps:
        nearest = max(1, round(train.save_steps / train.eval_steps)) * train.eval_steps
        yield f"train.save_steps={train.save_steps} is no multiple of train.eval_steps={train.eval_steps}, which {wants[0]} needs: use {nearest}."


def _tracking(experiment: Experiment) -> Iterator[str]:
    tracking = experiment.tracking
    if tracking.kind is TrackingKind.none and tracking.uri:
        yield f"tracking.uri={tracking.uri} has no effect with tracking=none: use tracking=mlflow."
    if tracking.uri and re.match(r"(file:|\.|/)", tracking.uri):
        yield f"tracking.uri={tracking.uri} is a file store, which MLflow no longer writes: use sqlite:////absolute/path.db or http://HOST:5000."


def _machine(experiment: Experiment, machine: Machine) -> Iterator[str]:
    hw = experiment.hw
    if machine.torch is None:
        yield "torch is not installed: pip install torch."
    if hw.device is Device.cpu:
        if hw.devices:
            yield f"hw.devices={hw.devices} names cards and hw.device is cpu: remove one of the two."
        return
    yield from _driver(machine)
    cards = machine.usable()
    processes = hw.processes or 1
    if len(cards) < processes:
        have = "no usable GPU" if not cards else f"{len(cards)} usable GPU{'s' if len(cards) > 1 else ''}"
        yield (
            f"hw={hw.name} needs {processes} GPU{'s' if processes > 1 else ''} and this machine has {have} "
            f"({processes - len(cards)} missing): see what would run with `python -m sft_exp plan ...`, "
            f"or try the same ranks on the CPU with hw.device=cpu."
        )
    yield from _devices(experiment, machine)
    slow = [card for card in cards[:processes] if hw.capability and card.capability != hw.capability]
    if slow:
        yield (
            f"hw={hw.name} describes cards of compute capability {hw.capability}, and card {slow[0].index} is a "
            f"{slow[0].name} with {slow[0].capability}: use hw=auto, or set hw.capability={slow[0].capability}."
        )


def _driver(machine: Machine) -> Iterator[str]:
    if machine.cards and machine.torch_cuda is None:
        yield f"torch {machine.torch} is built without CUDA, so the {len(machine.cards)} GPUs cannot be used: install a CUDA build of torch."
    elif machine.driver_cuda and machine.torch_cuda and int(machine.driver_cuda) < int(machine.torch_cuda):
        yield (
            f"torch {machine.torch} is built for CUDA {machine.torch_cuda} and driver {machine.driver} runs at most "
            f"{machine.driver_cuda}: update the driver, or install torch for CUDA {int(machine.driver_cuda)}."
        )


def _devices(experiment: Experiment, machine: Machine) -> Iterator[str]:
    devices = experiment.hw.devices
    if devices is None:
        return
    known = [card.index for card in machine.cards]
    unknown = [index for index in devices if index not in known]
    if known and unknown:
        yield f"hw.devices={devices} names card {unknown[0]} and this machine has {known}."
    if len(set(devices)) != len(devices) or len(devices) != experiment.hw.processes:
        yield f"hw.devices={devices} must name each of hw.processes={experiment.hw.processes} cards once."


def _outputs(experiment: Experiment) -> Iterator[str]:
    folder = Path(experiment.outputs)
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        free = shutil.disk_usage(existing).free
        need = sizes.disk_bytes(experiment)
    except OSError as error:
        yield f"outputs={folder} cannot be read ({error.strerror}): set outputs=FOLDER."
        return
    if not existing.is_dir() or not __import__("os").access(existing, 2):
        yield f"outputs={folder} cannot be written: set outputs=FOLDER to a folder of yours."
    elif free < need:
        yield (
            f"outputs={folder} has {free / 2**30:.1f} GiB free and this run may write {need / 2**30:.1f} GiB: "
            f"free some, set outputs=FOLDER elsewhere, or keep fewer checkpoints (train.save_total_limit)."
        )


def _warnings(experiment: Experiment) -> Iterator[str]:
    stage, processes = experiment.zero, experiment.hw.processes or 1
    if stage.stage > 0 and processes == 1 and not stage.offload_optimizer:
        yield f"zero={stage.stage} has nothing to shard in one process: zero=0 does the same without DeepSpeed, faster."
    if stage.stage > 0 and experiment.adapter.kind is not AdapterKind.full and stage.stage < 3:
        yield f"zero={stage.stage} shards optimizer and gradients, and adapter={experiment.adapter.kind.value} has little of either."
    full16 = experiment.model.dtype in (Dtype.bfloat16, Dtype.float16) and experiment.adapter.kind is AdapterKind.full
    if full16 and stage.stage == 0:
        yield f"model.dtype={experiment.model.dtype.value} with adapter=full loses small updates: model.dtype=float32 keeps them."
    if experiment.train.precision is Precision.fp16 and experiment.model.name and "qwen" in experiment.model.name:
        yield "this model was trained in bf16; in fp16 its activations may overflow: watch skipped_steps and loss_scale."
    if experiment.train.packing and experiment.model.attention is Attention.sdpa:
        yield "train.packing with sdpa attention is right but slow (a block mask): compare with train.packing=false."
