"""From what was asked to what will run."""

import json
from pathlib import Path

import pytest

from composing import NO_CARDS, Compose, machine, resolved
from sft_exp.machine import Machine
from sft_exp.request import flatten, to_plain
from sft_exp.resolve import resolve
from sft_exp.schema import Dtype, Precision


@pytest.mark.parametrize(
    ("typed", "on", "expected"),
    [
        ("model=tiny hw=cpu", NO_CARDS, Dtype.float32),
        ("model=tiny", machine("4090"), Dtype.float32),
        ("model=tiny zero=2", machine("4090"), Dtype.bfloat16),
        ("model=tiny adapter=lora", machine("4090"), Dtype.bfloat16),
        ("model=tiny adapter=qlora", machine("v100"), Dtype.float16),
        ("model=tiny zero=2 hw=cpu2", NO_CARDS, Dtype.float32),
        ("model=tiny adapter=lora train.precision=fp32", machine("4090"), Dtype.float32),
        ("model=tiny model.dtype=float16", machine("4090"), Dtype.float16),
    ],
)
def test_dtype(here: Path, typed: str, on: Machine, expected: Dtype) -> None:
    assert resolved(*typed.split(), on=on).model.dtype is expected


def test_nothing_is_left_open(here: Path) -> None:
    """After resolving, no `auto` remains and every null of the machine is a number."""
    for on in (NO_CARDS, machine("v100"), machine("4090", 4)):
        flat = flatten(to_plain(resolved("model=tiny", on=on)))
        assert [key for key, value in flat.items() if value == "auto"] == ["hw.name"]
        assert None not in [flat[key] for key in ("hw.processes", "hw.threads", "train.micro_batch", "tracking.uri")]


def test_resolving_twice_changes_nothing(here: Path) -> None:
    """A resumed run is resolved already."""
    for on in (NO_CARDS, machine("4090", 4)):
        once = resolved("model=tiny", "zero=2", on=on)
        assert resolve(once, on) == once


def test_what_was_asked_is_not_touched(compose: Compose) -> None:
    asked = compose("model=tiny").experiment
    resolve(asked, machine("4090", 4))
    assert asked == compose("model=tiny").experiment


def test_precision_of_the_profile(here: Path) -> None:
    assert resolved("hw=v100").train.precision is Precision.fp16
    assert resolved("hw=v100", "train.precision=fp32").train.precision is Precision.fp32


def test_a_batch_that_does_not_divide_is_left_alone(here: Path) -> None:
    assert resolved("hw=cpu2", "train.global_batch=7").train.micro_batch is None
    assert resolved("hw=cpu2", "train.global_batch=24").train.micro_batch == 6


def test_paths_become_absolute(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here / "home"))
    (here / "weights").mkdir()
    found = resolved(
        "model.path=weights", "model.tokenizer=~/tokens", "model.chat_template=chat.jinja", "dataset=jsonl",
        "dataset.path=rows/*.jsonl", "outputs=~/runs",
    )  # fmt: skip
    assert found.model.path == str(here / "weights")
    assert found.model.tokenizer == str(here / "home" / "tokens")
    assert found.model.chat_template == str(here / "chat.jinja")
    assert found.dataset.path == str(here / "rows/*.jsonl")
    assert found.outputs == str(here / "home" / "runs")
    assert resolved("dataset.path=[a.csv, ~/b.csv]").dataset.path == [str(here / "a.csv"), str(here / "home" / "b.csv")]
    mixture = resolved(
        "dataset=mixture", "dataset.mixture={a: {path: [a.csv]}, b: {path: b/*}, c: {path: ORG/NAME, kind: hub}, d: {}}"
    ).dataset.mixture
    assert [part.path for part in mixture.values()] == [[str(here / "a.csv")], str(here / "b/*"), "ORG/NAME", None]


def test_names_stay_names(here: Path) -> None:
    assert resolved("model=qwen0.5b").model.path == "Qwen/Qwen2.5-0.5B"
    assert resolved("dataset=sample").dataset.path == "sample:sample.jsonl"
    assert resolved("dataset=infinity_instruct").dataset.path == "BAAI/Infinity-Instruct"


def test_a_path_beats_the_gguf_file(here: Path) -> None:
    found = resolved("model.path=ORG/NAME").model
    assert (found.gguf, found.name, found.path, found.shape.hidden_size) == (None, None, "ORG/NAME", None)


def test_numbers_of_a_local_folder(here: Path) -> None:
    (here / "folder").mkdir()
    numbers = {"model_type": "qwen2", "hidden_size": 64, "rope_parameters": {"rope_theta": 5000.0}, "other": 1}
    (here / "folder" / "config.json").write_text(json.dumps(numbers))
    shape = resolved("model=qwen0.5b", "model.path=folder").model.shape
    assert (shape.model_type, shape.hidden_size, shape.rope_theta) == ("qwen2", 64, 5000.0)
    assert (shape.tie_word_embeddings, shape.vocab_size) == (False, None)
    (here / "folder" / "config.json").write_text("{cut off")
    assert resolved("model=qwen0.5b", "model.path=folder").model.shape.hidden_size == 896


def test_tracking_uri(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolved("hw=cpu").tracking.uri == f"sqlite:///{here}/outputs/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server:5000")
    assert resolved("hw=cpu").tracking.uri == "http://server:5000"
    assert resolved("hw=cpu", "tracking.uri=sqlite:////x.db").tracking.uri == "sqlite:////x.db"
    assert resolved("hw=cpu", "tracking=none").tracking.uri is None


@pytest.mark.parametrize(
    ("typed", "on", "expected"),
    [
        ("model=tiny hw=cpu", NO_CARDS, "adamw_torch_fused"),
        ("model=tiny hw=4090x4 zero=2", machine("4090", 4), "adamw_torch_fused"),
        ("model=tiny hw=v100", machine("v100"), "adamw_torch"),
        ("model=tiny hw=v100 zero=2", machine("v100"), "adamw_torch_fused"),
        ("model=tiny hw=v100 train.precision=fp32", machine("v100"), "adamw_torch_fused"),
        ("model=tiny hw=cpu train.optimizer=sgd", NO_CARDS, "sgd"),
    ],
)
def test_optimizer(here: Path, typed: str, on: Machine, expected: str) -> None:
    """The fused one hides steps that torch's own scaler leaves out, so not with it."""
    assert resolved(*typed.split(), on=on).train.optimizer == expected
