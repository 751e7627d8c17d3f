"""What is saved, reopened, merged and reopened again computes what was trained: adapters x tying x ZeRO x tokens."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

import matrix
from composing import NO_CARDS, compose
from sft_exp import launch, request, rundir
from sft_exp.prepare import prepare_run
from sft_exp.resolve import resolve
from sft_exp.rundir import RunDir
from sft_exp.tokenizer import load_tokenizer
from test_model import build, tiny

CASES = list(itertools.product(("full", "lora", "qlora"), (True, False), (True, False)))
"""Adapter, tied, added tokens."""
NAMES = [f"{kind}-{'tied' if tied else 'untied'}-{'tokens' if added else 'plain'}" for kind, tied, added in CASES]
REOPENED = {"full": 1e-5, "lora": 1e-5, "qlora": 5e-3}  # under DeepSpeed its factors are bf16, reopened ones fp32
MERGED = {"full": 1e-5, "lora": 1e-5, "qlora": 1e-2}
"""Bounds on |logits - trained| / |trained| in L2. 4-bit kernels of the CPU round to bf16 inside, plain layers not."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Tied and untied models with exactly as many rows as the tokenizer has tokens, so that they must grow."""
    found = {}
    for tied in (True, False):
        found[tied] = tmp_path_factory.mktemp(f"base{tied}")
        model = tiny(vocab=2051, tied=tied)
        build(model).save_pretrained(found[tied])
        load_tokenizer(model).save_pretrained(found[tied])
    return found


def prepared(folder: Path, base: Path, kind: str, added: bool, *overrides: str) -> RunDir:
    """A run that is ready for its ranks."""
    data = folder / "rows.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"prompt": f"{at} + 1", "completion": f"<chunk>It is {at + 1}.</chunk>"} for at in range(12)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokens = ['model.special_tokens=["<chunk>","</chunk>"]'] if added else []
    asked = compose(
        "model=tiny", "model.weights=pretrained", f"model.path={base}", f"adapter={kind}", "dataset=jsonl",
        f"dataset.path={data}", "dataset.eval_fraction=0", "tracking=none", "train.global_batch=4",
        "train.max_steps=2", "train.warmup=0", "train.learning_rate=3e-3", f"outputs={folder}", *tokens, *overrides,
    )  # fmt: skip
    asked.experiment = resolve(asked.experiment, NO_CARDS)
    run = rundir.create(asked)
    prepare_run(run)
    return run


def check(run: RunDir, base: Path, tied: bool, added: bool) -> dict[str, float]:
    """Reopen what a run saved as a stranger would, merge it, reopen that; the differences are returned."""
    kind = request.read(run.request).experiment.adapter.kind.value
    trained = torch.load(run.path / "logits.pt")
    result = json.loads(run.result.read_text())
    assert result["problems"] == [] and result["saved_tensors"] > 0 and result["not_finite"] == 0
    assert (result["new_rows_moved_min"] or 0) > 1e-3 if added else result["new_rows_moved_min"] is None
    reopened = reopen(run.model, kind)
    merged = merge(run.model, base, kind)
    again: Any = AutoModelForCausalLM.from_pretrained(save(merged, run))
    assert again.config.tie_word_embeddings is tied
    assert (again.get_input_embeddings().weight is again.get_output_embeddings().weight) is tied
    plain = matrix.logits(AutoModelForCausalLM.from_pretrained(base), added=False) if not added else None
    assert plain is None or (plain - trained).abs().max() > 1e-2, "nothing was trained"
    found = {name: difference(network, trained, added) for name, network in (("reopened", reopened), ("merged", again))}
    assert found["reopened"] < REOPENED[kind] and found["merged"] < MERGED[kind], found
    return found


def difference(network: Any, trained: torch.Tensor, added: bool) -> float:
    return float((matrix.logits(network, added=added) - trained).norm() / trained.norm())


def quantized(kind: str) -> dict[str, Any]:
    settings = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "float32"}
    return {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, **settings)} if kind == "qlora" else {}


def reopen(folder: Path, kind: str) -> Any:
    if kind == "full":
        return AutoModelForCausalLM.from_pretrained(folder)
    return AutoPeftModelForCausalLM.from_pretrained(folder, **quantized(kind))


def merge(folder: Path, base: Path, kind: str) -> Any:
    """Merged weights; those of QLoRA are merged into what the 4-bit weights stand for."""
    if kind == "full":
        return AutoModelForCausalLM.from_pretrained(folder)
    network: Any = AutoModelForCausalLM.from_pretrained(base, **quantized(kind))
    if kind == "qlora":
        network = network.dequantize()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if len(tokenizer) > network.get_input_embeddings().weight.shape[0]:
        network.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return PeftModel.from_pretrained(network, folder).merge_and_unload()


def save(network: Any, run: RunDir) -> Path:
    folder = run.path / "merged"
    network.save_pretrained(folder)
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "tied", "added"), CASES, ids=NAMES)
def test_one_process(tmp_path: Path, bases: dict[bool, Path], kind: str, tied: bool, added: bool) -> None:
    run = prepared(tmp_path, bases[tied], kind, added, "hw=cpu")
    os.environ |= launch.added(request.read(run.request).experiment, os.environ, launch.free_port())
    matrix.train(run.path)
    print(check(run, bases[tied], tied, added))


def allowed(zero: str, kind: str, added: bool) -> bool:
    """Added tokens under an adapter are refused at stage 3."""
    return not (zero == "3" and added and kind != "full")


@pytest.mark.nightly
@pytest.mark.parametrize("zero", ["2", "3"])
def test_two_ranks(tmp_path: Path, bases: dict[bool, Path], zero: str) -> None:
    """All in the same two ranks, one after the other: starting them anew would take minutes."""
    overrides = ("hw=cpu2", f"zero={zero}", "train.micro_batch=2")
    runs = [
        prepared(tmp_path / name, bases[tied], kind, added, *overrides)
        for name, (kind, tied, added) in zip(NAMES, CASES, strict=True)
        if allowed(zero, kind, added)
    ]
    cases = [case for case in CASES if allowed(zero, case[0], case[2])]
    experiment = request.read(runs[0].request).experiment
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={launch.free_port()}",
        str(Path(matrix.__file__)), *(str(run.path) for run in runs),
    ]  # fmt: skip
    env = launch.environment(experiment, os.environ, launch.free_port())
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    for run, (kind, tied, added) in zip(runs, cases, strict=True):
        print(kind, tied, added, check(run, bases[tied], tied, added))
