"""What a run leaves, used as a stranger would: loaded by the libraries, merged, and talked to in a terminal."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from composing import NO_CARDS
from sft_exp import card, difference, merging, record, request, rundir, trained_model
from sft_exp.answering import Answer, Voice
from sft_exp.model import add_token_rows
from sft_exp.rundir import RunDir
from sft_exp.schema import Model
from sft_exp.tokenizer import load_tokenizer
from terminal import CTRL_C, CTRL_D, Terminal
from test_model import build, tiny
from training import train

pytestmark = pytest.mark.slow

KINDS = ("full", "lora", "qlora")
QUESTION, ANSWER = "0 + 1", "<chunk>It is 1.</chunk>"
CPU = torch.device("cpu")
TOKENS = '["<chunk>","</chunk>"]'
LOADERS = """
import json, sys
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer, BitsAndBytesConfig, pipeline

kind, folder = sys.argv[1:]
quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
more = {"quantization_config": quantization} if kind == "qlora" else {}
tokenizer = AutoTokenizer.from_pretrained(folder)
model = folder if kind == "whole" else AutoPeftModelForCausalLM.from_pretrained(folder, dtype="float32", **more)
pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
chat = [{"role": "user", "content": "0 + 1"}]
answer = pipe(chat, max_new_tokens=40, do_sample=False)[0]["generated_text"][-1]["content"]
ids = pipe(chat, max_new_tokens=40, do_sample=False, return_tensors=True)[0]["generated_token_ids"]
print(json.dumps({"answer": answer, "last": ids[-1], "end": tokenizer.eos_token_id, "template": tokenizer.chat_template,
                  "chunk": tokenizer.convert_tokens_to_ids("<chunk>")}))
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint on disk: an adapter can be loaded by PEFT only where its base can."""
    folder = tmp_path_factory.mktemp("base")
    network = build(tiny())
    with torch.no_grad():
        network.get_input_embeddings().weight *= 8  # small drawn rows leave a tied head no large logits to learn
    network.save_pretrained(folder)
    load_tokenizer(tiny()).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, base: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run that has learned one answer, with its end, by heart."""
    kind = request.param
    rate = 5e-3 if kind == "full" else 1e-2
    made = train(
        tmp_path_factory.mktemp(kind), f"adapter={kind}", f"model.path={base}", "model.weights=pretrained",
        f"model.special_tokens={TOKENS}", "train.max_steps=80", f"train.learning_rate={rate}",
        "train.scheduler=linear", conversations=1,
        answer="<chunk>It is %d.</chunk>",
    )  # fmt: skip
    facts, _ = record.collect(NO_CARDS, [], [])
    rundir.write_json(made.record, facts)
    card.leave(made)
    return made


def kind_of(run: RunDir) -> str:
    return request.read(run.request).experiment.adapter.kind.value


def say(voice: Voice, tokens: int = 40) -> Answer:
    answer: Answer = voice.answer(QUESTION, lambda _: None, tokens=tokens, temperature=0.0)
    return answer


def loaded_elsewhere(kind: str, folder: Path) -> dict[str, Any]:
    """What a fresh process, which does not know sft_exp, makes of a folder."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", LOADERS, kind, str(folder)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_libraries_load_the_model(run: RunDir) -> None:
    kind = kind_of(run)
    found = loaded_elsewhere("whole" if kind == "full" else kind, run.model)
    assert found["answer"].strip() == ANSWER
    assert found["last"] == found["end"] == 2050
    assert found["template"] == load_tokenizer(tiny()).chat_template
    assert found["chunk"] == 2051


def test_the_card_is_ours(run: RunDir) -> None:
    text = (run.model / "README.md").read_text()
    assert text.count("\n# ") == 1
    assert f"# {run.name}" in text
    assert rundir.read_json(run.data)["fingerprint"] in text


def test_a_merged_model_is_the_trained_one(run: RunDir, tmp_path: Path) -> None:
    found = merging.merge(run, tmp_path, CPU, "float32")
    assert found.logits < 1e-5
    assert found.same == 1.0
    assert found.places > 100
    merged = loaded_elsewhere("whole", tmp_path)
    assert (merged["answer"].strip(), merged["last"]) == (ANSWER, merged["end"])
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    rounded = merging.merge(run, tmp_path, CPU, "bfloat16")
    assert 1e-4 < rounded.logits < 0.02
    assert AutoModelForCausalLM.from_pretrained(tmp_path).dtype is torch.bfloat16


def test_a_merge_with_the_unrounded_base_is_far_off(run: RunDir, base: Path) -> None:
    if kind_of(run) != "qlora":
        pytest.skip("only QLoRA rounds its base")
    experiment = merging.exact(request.read(run.request).experiment)
    texts = difference.texts(trained_model.tokenizer(run), experiment.model.special_tokens)
    before = difference.logits(merging._trained(run, experiment, CPU), texts)
    model = Model(path=str(base), special_tokens=["<chunk>", "</chunk>"])
    plain: Any = AutoModelForCausalLM.from_pretrained(base, dtype="float32")
    add_token_rows(plain, load_tokenizer(model), ["<chunk>", "</chunk>"])
    naive = trained_model.adapted(run, plain).eval()
    assert difference.compare(before, difference.logits(naive, texts)).logits > 0.02


def test_trained_and_base_answer(run: RunDir) -> None:
    model = trained_model.load(run, CPU, with_base=True)
    trained = Voice("trained", model.network, model.tokenizer)
    network, entering = model.before()
    before = Voice("base", network, model.tokenizer, entering)
    answer = say(trained)
    assert answer.text.strip() == ANSWER
    assert not (answer.cut or answer.stopped or answer.full)
    assert say(before).text != answer.text
    assert [message["role"] for message in trained.messages] == ["user", "assistant"]
    trained.restart()
    assert say(trained).text == answer.text  # the adapter is back
    trained.restart()
    cut = say(trained, tokens=2)
    assert (cut.cut, cut.tokens) == (True, 2)


@pytest.mark.nightly  # waits for words on a terminal, which a busy machine is late with
def test_a_terminal(run: RunDir) -> None:
    with Terminal([sys.executable, "-m", "sft_exp", "chat", str(run.path), "--base"], run.path) as terminal:
        terminal.wait_for("you> ")
        terminal.type(f"{QUESTION}\n")
        assert ANSWER in terminal.wait_for("base> ")
        terminal.type(CTRL_C)  # the base never ends by itself
        assert "(stopped)" in terminal.wait_for("you> ")
        terminal.type("/new\n")
        assert "a new conversation" in terminal.wait_for("you> ")
        terminal.type(CTRL_D if kind_of(run) == "full" else CTRL_C)
        assert terminal.end() == 0
        assert "Traceback" not in terminal.screen


def test_merge_as_typed(run: RunDir, tmp_path: Path) -> None:
    """Above the bound nothing is left; below it the folder, here an empty one, is complete."""
    out = tmp_path / "out"
    typed = [sys.executable, "-m", "sft_exp", "merge", str(run.path), "--out", str(out), "--dtype", "bfloat16"]
    refused = subprocess.run([*typed, "--max-difference", "1e-9"], capture_output=True, text=True)
    assert (refused.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "more than --max-difference=1e-09, so nothing was written" in refused.stderr
    out.mkdir()
    done = subprocess.run(typed, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "same likeliest token at" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert "logits against the trained model: relative difference" in (out / "README.md").read_text()
