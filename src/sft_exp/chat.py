"""`python -m sft_exp chat RUN`: talk to the model of a finished run, and compare it with its base."""

import argparse
import contextlib
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from sft_exp import devices, quiet, request, rundir, trained
from sft_exp.errors import ConfigError
from sft_exp.machine import look
from sft_exp.rundir import RunDir

if TYPE_CHECKING:
    from sft_exp.answering import Answer, Voice

TOKENS = 512
"""New tokens an answer may have."""
HINT = "Write a message. Ctrl-C stops an answer, Ctrl-D leaves, /new starts a new conversation."
LEAVE = ("/exit", "/quit", "/bye", "exit", "quit")
PROMPT = "you> "


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"chat: {message}; see python -m sft_exp chat --help.")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """What was typed. Raises ConfigError where it cannot be read."""
    parser = _Parser(
        prog="python -m sft_exp chat", description=__doc__, allow_abbrev=False,
        epilog=f"{HINT} With --prompt the answer goes to the standard output and all else to the standard error.",
    )  # fmt: skip
    add = parser.add_argument
    add("run", metavar="RUN", help="run folder, or the name of a run below outputs/")
    add("--prompt", action="append", metavar="TEXT", help="answer this and leave; several are turns of a conversation")
    add("--base", action="store_true", help="let the model before training answer too")
    add("--system", metavar="TEXT", help="system prompt")
    add("--tokens", type=int, default=TOKENS, metavar="N", help=f"most new tokens of an answer (default {TOKENS})")
    add("--temperature", type=float, default=0.0, metavar="T",
        help="0 (default): the likeliest token each time; above: drawn at this temperature")  # fmt: skip
    add("--device", choices=devices.CHOICES, default="auto", help="default: a card if there is one")
    found = parser.parse_args(argv)
    if found.tokens < 1:
        raise ConfigError(f"--tokens={found.tokens} leaves no answer: give 1 or more.")
    if not 0 <= found.temperature < float("inf"):
        raise ConfigError(f"--temperature={found.temperature} is not possible: give 0 or more, such as 0.7.")
    return found


def show(argv: Sequence[str]) -> None:
    """Talk until the user leaves. Raises ConfigError where the run cannot be used."""
    asked = arguments(argv)
    run = trained.find(asked.run)
    device = devices.choose(asked.device, look())
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that does not know UTF-8
    try:
        voices = _voices(run, device, asked)
        if asked.prompt:
            _answer_all(voices, asked)
        else:
            print(f"{title(run)}\n{HINT}\n", flush=True)
            converse(voices, _reader(), asked)
    except KeyboardInterrupt:  # while the model is loaded, or in an answer to --prompt
        print()
        sys.exit(130)


def title(run: RunDir) -> str:
    """One line on what answers."""
    experiment, result = request.read(run.request).experiment, rundir.read_json(run.result)
    kind, model = experiment.adapter.kind.value, experiment.model.name or experiment.model.path
    behaviour = trained.behaviour(run)
    verdict = f"; behaviour: {behaviour['verdict']}" if behaviour else ""
    return f"{run.name}: {model}, {kind}, {result['steps']} steps{verdict}"


def _voices(run: RunDir, device: str, asked: argparse.Namespace) -> "list[Voice]":
    if sys.stderr.isatty():
        print("loading the model ...", end="\r", file=sys.stderr, flush=True)
    with quiet.libraries(request.read(run.request).experiment):
        voices = _load(run, device, asked)
    if sys.stderr.isatty():
        print(" " * 21, end="\r", file=sys.stderr, flush=True)
    if asked.system is not None and not voices[0].tokenizer.chat_template:
        raise ConfigError("--system needs a chat template, and the model has none: leave it out.")
    return voices


def _load(run: RunDir, device: str, asked: argparse.Namespace) -> "list[Voice]":
    import torch

    from sft_exp import trained_model
    from sft_exp.answering import Voice

    with devices.enough_memory(torch.device(device)):
        model = trained_model.load(run, torch.device(device), with_base=asked.base)
    name = "trained" if asked.base else "model"
    voices = [Voice(name, model.network, model.tokenizer, system=asked.system)]
    if asked.base:
        network, entering = model.before()
        voices.append(Voice("base", network, model.tokenizer, entering, asked.system))
    return voices


def _answer_all(voices: "list[Voice]", asked: argparse.Namespace) -> None:
    """The answers to all prompts; a Ctrl-C ends them."""
    for text in asked.prompt:
        for voice in voices:
            if len(voices) > 1:
                print(f"{voice.name}> ", end="", flush=True)
            answer = voice.answer(text, _write, tokens=asked.tokens, temperature=asked.temperature)
            print(flush=True)
            if said := remark(answer, asked.tokens):
                print(said, file=sys.stderr, flush=True)
            if answer.stopped:
                raise KeyboardInterrupt


def converse(voices: "list[Voice]", read: Callable[[], str], asked: argparse.Namespace) -> None:
    """Read a message, let each voice answer, again and again; Ctrl-C or Ctrl-D instead of a message leaves."""
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while (text := read().strip()) not in LEAVE:
            if text == "/new":
                for voice in voices:
                    voice.restart()
                print("a new conversation\n")
            elif text:
                _turn(voices, text, asked)
        return
    print()


def _turn(voices: "list[Voice]", text: str, asked: argparse.Namespace) -> None:
    try:
        for voice in voices:
            print(f"{voice.name}> ", end="", flush=True)
            answer = voice.answer(text, _write, tokens=asked.tokens, temperature=asked.temperature)
            said = remark(answer, asked.tokens)
            print(f"\n{said}\n" if said else "\n", flush=True)
    except ConfigError as error:
        print(f"\n{error}\n", flush=True)


def remark(answer: "Answer", tokens: int) -> str:
    """What has to be said about an answer; nothing about one that ended by itself."""
    if answer.stopped:
        return "(stopped)"
    if answer.cut:
        return f"(cut after {answer.tokens} tokens; start with --tokens={2 * tokens} for longer answers)"
    if answer.full:
        return "(cut at the last position that the model has; start a new conversation)"
    return "" if answer.text.strip() else "(nothing: the model ended at once)"


def _write(text: str) -> None:
    print(text, end="", flush=True)


def _reader() -> Callable[[], str]:
    """Reads a line, with history and editing in a terminal, without a prompt in a pipe."""
    if not sys.stdin.isatty():
        lines: Iterator[str] = iter(sys.stdin)

        def read() -> str:
            for line in lines:
                print(f"{PROMPT}{line.rstrip()}")
                return line
            raise EOFError

        return read
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - `input` uses it
    return lambda: input(PROMPT)
