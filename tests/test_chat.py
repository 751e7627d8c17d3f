"""`chat`: what is typed, how a conversation goes on, and what is said about an answer."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from composing import NO_CARDS, machine
from sft_exp import chat, cli, devices
from sft_exp.answering import Answer, Voice
from sft_exp.errors import ConfigError
from sft_exp.machine import Machine
from sft_exp.tokenizer import load_tokenizer
from test_model import build, tiny

ASKED = argparse.Namespace(tokens=4, temperature=0.0)


def voice(**fields: Any) -> Voice:
    """A tiny model of random weights, which does not end its answers."""
    return Voice("model", build(tiny()).eval(), load_tokenizer(tiny()), **fields)


def talk(voices: list[Voice], *lines: str | type[BaseException]) -> None:
    """Type lines, or what a key raises at the prompt."""
    typed = iter(lines)

    def read() -> str:
        line = next(typed, EOFError)
        if isinstance(line, str):
            return line
        raise line

    chat.converse(voices, read, ASKED)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ([], ["RUN", "chat --help"]),
        (["x", "--tokens", "0"], ["--tokens=0", "1 or more"]),
        (["x", "--tokens", "many"], ["many", "chat --help"]),
        (["x", "--temperature", "-1"], ["--temperature=-1.0", "0.7"]),
        (["x", "--temperature", "nan"], ["--temperature=nan"]),
        (["x", "--device", "tpu"], ["tpu", "cuda"]),
        (["nowhere"], ["nowhere is no run folder"]),
    ],
)
def test_mistakes(here: Path, typed: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        cli.start(["chat", *typed])
    assert all(word in str(refused.value) for word in words), refused.value


@pytest.mark.parametrize("command", ["chat", "merge"])
def test_help_is_light(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.start([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: python -m sft_exp {command}" in capsys.readouterr().out


def test_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    card = machine("4090")
    assert [devices.choose(name, card, 20.0) for name in ("auto", "cuda")] == ["cuda", "cuda"]
    assert devices.choose("auto", card, 30.0) == "cpu"
    assert card.usable() == []  # hidden, so that 4-bit weights do not go there by themselves
    assert devices.choose("auto", NO_CARDS) == "cpu"
    with pytest.raises(ConfigError, match=r"--device cuda: torch 2.13.0\+cpu can use no card"):
        devices.choose("cuda", Machine(torch="2.13.0+cpu"))


@pytest.mark.parametrize("key", [EOFError, KeyboardInterrupt])
def test_turns_and_leaving(key: type[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
    one = voice(system="Be brief.")
    talk([one], "Hello", "", "again", key)
    assert [message["role"] for message in one.messages] == ["user", "assistant"] * 2
    assert [message["content"] for message in one.messages[::2]] == ["Hello", "again"]
    shown = capsys.readouterr().out
    assert shown.count("model> ") == 2
    assert shown.count("(cut after 4 tokens; start with --tokens=8 for longer answers)") == 2
    assert shown.endswith("\n")


def test_a_new_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    one = voice()
    talk([one], "Hello", "/new", "/exit", "not read")
    assert one.messages == []
    assert "a new conversation" in capsys.readouterr().out


def test_a_conversation_that_is_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    one = voice()
    talk([one], "word " * 600, "Hello")
    assert len(one.messages) == 2
    assert "the conversation fills the model's 512 positions: start a new one." in capsys.readouterr().out


def test_the_last_position() -> None:
    one = voice()
    prompt = one._encode([{"role": "user", "content": "Hello"}])["input_ids"].shape[1]
    one.network.config.max_position_embeddings = prompt + 3
    answer = one.answer("Hello", lambda _: None, tokens=9, temperature=0.0)
    assert (answer.full, answer.cut, answer.tokens) == (True, False, 3)


def test_an_answer_is_stopped() -> None:
    """The text so far stays, in the conversation too."""
    one, said = voice(), []

    def write(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            raise KeyboardInterrupt

    answer = one.answer("Hello", write, tokens=50, temperature=0.0)
    assert (answer.stopped, answer.cut) == (True, False)
    assert answer.tokens < 50
    assert one.messages[-1]["content"] == answer.text


def test_text_without_a_template() -> None:
    one = voice()
    one.tokenizer.chat_template = None
    one.answer("Hello", lambda _: None, tokens=2, temperature=0.0)
    assert one.messages == []
    assert one._encode([{"role": "user", "content": "Hello"}])["input_ids"].tolist() == [
        one.tokenizer("Hello").input_ids
    ]


def test_drawn_tokens_differ() -> None:
    one = voice()
    answers = {one.answer("Hello", lambda _: None, tokens=4, temperature=2.0).text for _ in range(3)}
    assert len(answers) > 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer("Yes.", 3), ""),
        (Answer(" ", 1), "(nothing: the model ended at once)"),
        (Answer("Yes", 3, stopped=True), "(stopped)"),
        (Answer("Yes", 3, full=True), "(cut at the last position that the model has; start a new conversation)"),
    ],
)
def test_remarks(answer: Answer, said: str) -> None:
    assert chat.remark(answer, 8) == said


def test_piped_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Pipe:
        def isatty(self) -> bool:
            return False

        def __iter__(self) -> Iterator[str]:
            return iter(["Hello\n"])

    monkeypatch.setattr(sys, "stdin", Pipe())
    talk_to = voice()
    chat.converse([talk_to], chat._reader(), ASKED)
    assert len(talk_to.messages) == 2
    assert capsys.readouterr().out.startswith("you> Hello\nmodel> ")
