"""Every field of the schema is read, and changing it changes something that can be seen here.

A field is in a table: HERE (it changes command, environment, DeepSpeed's configuration, what is checked or
what a run is called), ARGUMENTS (it changes TRL's arguments) or ELSEWHERE (with the test that sees its effect).
Numbers of `dataset` and `adapter` are in HERE with a value that is refused; test_dataset.py and test_adapter.py, which
need the heavy half, have the others.
"""

import ast
import dataclasses
import json
import os
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

import sft_exp
from composing import NO_CARDS, Compose, machine, options
from sft_exp import check, extra, launch, rundir, schema, sizes, tracking
from sft_exp.machine import Machine
from sft_exp.request import Request, flatten, to_plain
from sft_exp.resolve import resolve
from sft_exp.run import batch, deepspeed
from sft_exp.rundir import RunDir

SOURCE = Path(sft_exp.__file__).parent
KEYS = list(flatten(to_plain(schema.Experiment())))
GPUS = machine("4090", 8)
COMMIT = "a" * 40

TOO_LARGE = "model=qwen7b model.weights=random model.path=null tracking=none"
HERE: dict[str, tuple[str, str, Machine]] = {
    # key -> what is set besides, the value it is changed to, the machine
    "model.name": ("model=tiny", "other", NO_CARDS),
    "model.path": ("hw=cpu", "./none", NO_CARDS),
    "model.gguf": ("model=smollm2-135m", "null", NO_CARDS),
    "model.weights": ("model=tiny model.shape.vocab_size=null", "pretrained", NO_CARDS),
    "model.revision": ("model=tiny model.trust_remote_code=true", COMMIT, NO_CARDS),
    "model.trust_remote_code": ("model=tiny", "true", NO_CARDS),
    "model.chat_template": ("model=tiny", "no.jinja", NO_CARDS),
    "model.special_tokens": ("model=tiny", "[<a>,<a>]", NO_CARDS),
    "model.token_descriptions": ("model=tiny", "{a: b}", NO_CARDS),
    "model.train_special_tokens": ("model=tiny", "false", NO_CARDS),
    "model.dtype": ("model=tiny train.master_weights=false", "bfloat16", NO_CARDS),
    "model.attention": ("model=tiny hw=cpu", "flex_attention", NO_CARDS),
    **{
        f"model.shape.{name}": ("model=tiny", "null", NO_CARDS)
        for name in (field.name for field in dataclasses.fields(schema.Shape))
    },
    "dataset.kind": ("model=tiny dataset.path=ORG/NAME", "hub", NO_CARDS),
    "dataset.path": ("model=tiny", "none.jsonl", NO_CARDS),
    "dataset.limit": ("model=tiny", "0", NO_CARDS),
    "dataset.max_length": ("model=tiny", "1", NO_CARDS),
    "dataset.max_bad_fraction": ("model=tiny", "2", NO_CARDS),
    "dataset.streaming": ("model=tiny", "true", NO_CARDS),
    "dataset.mixture": ("model=tiny", "{a: {}}", NO_CARDS),
    "dataset.test_fraction": ("model=tiny", "1", NO_CARDS),
    "dataset.eval_fraction": ("model=tiny train.eval_steps=1", "0", NO_CARDS),
    "dataset.num_proc": ("model=tiny", "0", NO_CARDS),
    "adapter.kind": ("model=tiny", "lora", NO_CARDS),
    "adapter.r": ("model=tiny adapter=lora train.save_steps=1", "8", NO_CARDS),
    "adapter.alpha": ("model=tiny adapter=lora", "null", NO_CARDS),
    "adapter.dropout": ("model=tiny adapter=lora", "1", NO_CARDS),
    "adapter.target_modules": ("model=tiny adapter=lora", "null", NO_CARDS),
    "adapter.quant_type": ("model=tiny adapter=qlora", "int8", NO_CARDS),
    "adapter.double_quant": ("model=tiny adapter=qlora", "null", NO_CARDS),
    "zero.stage": ("model=tiny zero=1", "2", NO_CARDS),
    "zero.offload_optimizer": ("model=tiny zero=2", "true", NO_CARDS),
    "zero.offload_param": ("model=tiny zero=3", "true", NO_CARDS),
    "zero.pin_memory": ("model=tiny zero=2_offload", "true", NO_CARDS),
    "zero.reduce_bucket_size": ("model=tiny zero=1", "1000", NO_CARDS),
    "zero.allgather_bucket_size": ("model=tiny zero=1", "1000", NO_CARDS),
    "zero.json": ("model=tiny zero=1", "none.json", NO_CARDS),
    "zero.extra": ("model=tiny zero=1", "{a: 1}", NO_CARDS),
    "hw.name": ("model=tiny hw=h200", "mine", NO_CARDS),
    "hw.device": ("model=tiny", "cpu", GPUS),
    "hw.processes": ("model=tiny", "2", GPUS),
    "hw.devices": ("model=tiny hw.processes=2", "[4,5]", GPUS),
    "hw.precision": ("model=tiny zero=1", "fp16", GPUS),
    "hw.attention": ("model=tiny hw=cpu train.packing=true", "[eager]", NO_CARDS),
    "hw.memory_gib": ("model=qwen0.5b hw=4090x1 train.micro_batch=16", "10", GPUS),
    "hw.memory_check": (f"{TOO_LARGE} hw=4090x1", "false", GPUS),
    "hw.capability": ("model=tiny hw=4090x1", "9.0", GPUS),
    "hw.machines": ("model=tiny", "2", NO_CARDS),
    "hw.rendezvous": ("model=tiny hw.machines=2", "10.0.0.1:29500", NO_CARDS),
    "hw.threads": ("model=tiny", "3", NO_CARDS),
    "hw.launcher": ("model=tiny", "accelerate", GPUS),
    "hw.env": ("model=tiny", "{A: b}", NO_CARDS),
    "train.scheduler": ("model=tiny", "cosin", NO_CARDS),
    "train.early_stopping": ("model=tiny", "1", NO_CARDS),
    "train.sample_tokens": ("model=tiny", "0", NO_CARDS),
    "train.master_weights": ("model=tiny model.dtype=bfloat16", "false", NO_CARDS),
    "train.compile": ("model=tiny zero=3", "true", NO_CARDS),
    "dataset.train_end": ("model=tiny dataset.loss=all", "false", NO_CARDS),
    "eval.probes": ("model=tiny eval.stop_degenerate=true", "false", NO_CARDS),
    "eval.prompts": ("model=tiny", "none.txt", NO_CARDS),
    "eval.metrics": ("model=tiny", "[math:pi]", NO_CARDS),
    "eval.stop_degenerate": ("model=tiny eval.probes=false", "true", NO_CARDS),
    **{
        f"eval.{name}": ("model=tiny", "-1", NO_CARDS)
        for name in ("count", "tokens", "batch", "every", "budget", "answers")
    },
    **{f"eval.limits.{field.name}": ("model=tiny", "-1", NO_CARDS) for field in dataclasses.fields(schema.Limits)},
    "tracking.kind": ("model=tiny tracking.uri=sqlite:////a.db", "none", NO_CARDS),
    "tracking.uri": ("model=tiny", "file:///a", NO_CARDS),
    "name": ("model=tiny", "mine", NO_CARDS),
    "outputs": ("model=tiny", "/dev/null/x", NO_CARDS),
}
ARGUMENTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    # key -> what is set besides, the value it is changed to, TRL's arguments then
    "dataset.shuffle": ("", "false", {"train_sampling_strategy": "sequential"}),
    "train.max_steps": ("", "3", {"max_steps": 3}),
    "train.epochs": ("", "2.5", {"num_train_epochs": 2.5}),
    "train.global_batch": ("train.micro_batch=2", "32", {"gradient_accumulation_steps": 16}),
    "train.micro_batch": ("", "4", {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4}),
    "train.learning_rate": ("", "1e-3", {"learning_rate": 1e-3}),
    "train.scheduler": ("", "cosine", {"lr_scheduler_type": "cosine"}),
    "train.scheduler_args": ("train.scheduler=cosine", "{num_cycles: 2}", {"lr_scheduler_kwargs": {"num_cycles": 2}}),
    "train.warmup": ("", "0.1", {"warmup_steps": 0.1}),
    "train.optimizer": ("", "sgd", {"optim": "sgd"}),
    "train.weight_decay": ("", "0.1", {"weight_decay": 0.1}),
    "train.max_grad_norm": ("", "0.5", {"max_grad_norm": 0.5}),
    "train.precision": ("", "bf16", {"bf16": True, "fp16": False}),
    "train.gradient_checkpointing": ("", "true", {"activation_checkpointing": True}),
    "train.packing": ("", "true", {"packing": True}),
    "train.seed": ("", "7", {"seed": 7, "data_seed": 7}),
    "train.logging_steps": ("", "3", {"logging_steps": 3}),
    "train.eval_steps": ("", "3", {"eval_strategy": "steps", "eval_steps": 3}),
    "train.save_steps": ("", "3", {"save_strategy": "steps", "save_steps": 3}),
    "train.save_total_limit": ("", "5", {"save_total_limit": 5}),
    "train.load_best": (
        "train.eval_steps=3",
        "true",
        {
            "load_best_model_at_end": True,
            "metric_for_best_model": "eval_loss",
            "greater_is_better": False,
            "save_steps": 3,
        },
    ),
    "train.extra": ("", "{adam_beta1: 0.8}", {"adam_beta1": 0.8}),
    "dataset.max_length": ("", "64", {"max_length": 64}),
    "hw.device": ("", "cpu", {"use_cpu": True}),
}
ELSEWHERE = {
    "model.tokenizer": "test_tokenizer.py loads it",
    "dataset.name": "a name in records only",
    "dataset.config": "test_hub.py loads it",
    "dataset.split": "test_hub.py loads it",
    "dataset.revision": "test_hub.py loads it",
    "dataset.loss": "test_labels.py labels with it",
    "dataset.role_map": "test_normalize.py",
    "dataset.columns": "test_normalize.py",
    "hw.peak_tflops": "the base of perf/mfu, which exists on a GPU only: test_gpu.py",
    "train.profile": "test_flat.py reads what it leaves",
    "train.sample_prompts": "answered before and after training: samples.json",
    "tracking.experiment": "test_tags_and_experiment_reach_the_store in this file",
    "tracking.tags": "test_tags_and_experiment_reach_the_store in this file",
    "resume": "test_resume.py",
    **{f"sweep.{field.name}": "test_sweeps.py, test_search.py" for field in dataclasses.fields(schema.Sweep)},
}


def effects(compose: Compose, typed: list[str], on: Machine) -> dict[str, Any]:
    """What a configuration does, as far as nothing heavy is needed to see it."""
    experiment = resolve(compose(*typed).experiment, on)
    request = Request(experiment=experiment)
    folder = Path("/runs/one")
    seen: dict[str, Any] = {"problems": check.check(experiment, on)}
    seen["name"] = rundir.run_name(experiment).rpartition("-")[0]
    seen["disk"] = sizes.disk_bytes(experiment)
    if batch(request).accumulation:
        seen["command"] = launch.command(experiment, folder, 1)
        seen["environment"] = launch.environment(experiment, {}, 1)
        seen["deepspeed"] = deepspeed(request)
    return seen


def attributes() -> set[str]:
    """Names that are read as an attribute, or by a literal given to getattr, anywhere but in the schema."""
    found: set[str] = set()
    for file in SOURCE.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        if file.name != "schema.py":
            found |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            found |= {
                item.value
                for node in ast.walk(tree)
                if isinstance(node, ast.Tuple)
                for item in node.elts
                if isinstance(item, ast.Constant) and isinstance(item.value, str)
            }
    return found


def test_every_field_is_read() -> None:
    # A shape's numbers are handed over as a whole: HERE shows that each of them is wanted.
    names = {key.rpartition(".")[2] for key in KEYS if not key.startswith("model.shape.")}
    assert names - attributes() == set()


def test_every_field_is_in_a_table() -> None:
    assert HERE.keys() | ARGUMENTS.keys() | ELSEWHERE.keys() == set(KEYS)
    assert ELSEWHERE.keys() & (HERE.keys() | ARGUMENTS.keys()) == set()


@pytest.mark.parametrize("key", HERE)
def test_a_change_is_seen(compose: Compose, key: str) -> None:
    typed, value, on = HERE[key]
    before = effects(compose, typed.split(), on)
    assert effects(compose, [*typed.split(), f"{key}={value}"], on) != before


def test_tags_and_experiment_reach_the_store(compose: Compose, here: Path) -> None:
    """Without a store: `test_tracking.py` has a real one."""
    asked = compose("model=tiny", "tracking.experiment=mine", "tracking.tags={team: us}")
    tracker = tracking.Tracker(asked, RunDir(here))
    assert (tracker.tracking.experiment, tracker.tracking.tags) == ("mine", {"team": "us"})


def test_types_are_those_that_omegaconf_knows() -> None:
    """Each hint is a plain type, an optional one, an enum, a list, a dictionary or another dataclass."""

    def walk(cls: type) -> None:
        for hint in typing.get_type_hints(cls).values():
            if dataclasses.is_dataclass(hint):
                walk(typing.cast(type, hint))
            assert typing.get_origin(hint) is not typing.Literal

    walk(schema.Experiment)
    assert set(options("zero")) >= {"0", "1", "2", "3"}


def test_fields_have_a_meaning() -> None:
    """A docstring under each field whose name does not say it all."""
    plain = {"name", "device", "launcher", "weight_decay", "learning_rate", "seed", "logging_steps", "kind"}
    plain |= {field.name for field in dataclasses.fields(schema.Shape)}
    plain |= {field.name for field in dataclasses.fields(schema.Experiment)} - {"name", "outputs", "resume"}
    for node in ast.parse((SOURCE / "schema.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            for item, after in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                    assert said or item.target.id in plain, f"{node.name}.{item.target.id}"


def test_what_a_run_sets_itself_cannot_be_set_in_extra() -> None:
    """Else the call of SFTConfig would have the argument twice."""
    tree = ast.parse((SOURCE / "arguments.py").read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "SFTConfig"]
    [call] = calls
    assert {keyword.arg for keyword in call.keywords if keyword.arg} - extra.OWNED.keys() == set()


BUILD = """
import json, sys
from pathlib import Path
from sft_exp import request
from sft_exp.rundir import RunDir
sys.modules["deepspeed"] = None  # as worker.py does at stage 0
from sft_exp.arguments import arguments
for line in sys.stdin:
    names, plain = json.loads(line)
    made = arguments(request.from_plain(request.Request, plain), RunDir(Path.cwd()), evaluates=True)
    print("made", json.dumps({name: getattr(made, name) for name in names}))
"""


@pytest.mark.slow
def test_arguments(compose: Compose, here: Path) -> None:
    """In one process, as a rank is started, since importing TRL takes seconds and starts a process group."""
    requests = []
    for key, (besides, value, expected) in ARGUMENTS.items():
        for overrides in ([*besides.split(), f"{key}={value}"], besides.split()):
            request = compose("model=tiny", "hw=cpu", *overrides)
            request.experiment = resolve(request.experiment, NO_CARDS)
            requests.append(json.dumps([list(expected), to_plain(request)]))
    env = launch.environment(request.experiment, os.environ, launch.free_port())
    done = subprocess.run(
        [sys.executable, "-c", BUILD], input="\n".join(requests), cwd=here, env=env, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = [json.loads(line.removeprefix("made ")) for line in done.stdout.splitlines() if line.startswith("made ")]
    for (key, (_, _, expected)), changed, plain in zip(ARGUMENTS.items(), made[::2], made[1::2], strict=True):
        assert changed == expected, key
        assert changed != plain or key == "hw.device", key
