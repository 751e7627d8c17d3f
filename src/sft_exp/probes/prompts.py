"""The prompts that are answered: 64 shipped ones, or a file of one's own."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sft_exp.errors import ConfigError
from sft_exp.files import ASSETS
from sft_exp.probes import languages

T = TypeVar("T")
SHIPPED = ASSETS / "probes.jsonl"
TEXTS = ASSETS / "general_text.jsonl"
"""General texts in the same languages, on which perplexity and divergence are measured."""


@dataclass(frozen=True)
class Prompt:
    """One prompt and the language its answer should have."""

    id: str
    text: str
    language: str | None = None
    """ISO 639-1 code of the answer; None is not judged, as for code and numbers."""


def load(path: str | None, count: int | None) -> list[Prompt]:
    """The prompts of a file, one a line or jsonl rows with `prompt`; `count` of them, spread over the file.

    Raises ConfigError where there is no prompt, or a row is none.
    """
    file = Path(path).expanduser() if path else SHIPPED
    found = _jsonl(file) if file.suffix == ".jsonl" else _lines(file)
    if not found:
        raise ConfigError(f"eval.prompts={path} has no prompt: write one a line, or set it to null.")
    return spread(found, count)


def spread(items: list[T], count: int | None) -> list[T]:
    """`count` of the items at equal distances, all of them where there are no more."""
    if count is None or count >= len(items):
        return items
    return [items[at * len(items) // count] for at in range(count)]


def general_texts() -> list[str]:
    """The shipped general texts."""
    return [json.loads(line)["text"] for line in TEXTS.read_text(encoding="utf-8").splitlines()]


def _lines(file: Path) -> list[Prompt]:
    lines = [line.strip() for line in _text(file).splitlines() if line.strip()]
    return [Prompt(f"line-{at}", line, _detected(line)) for at, line in enumerate(lines, 1)]


def _jsonl(file: Path) -> list[Prompt]:
    made = []
    for at, line in enumerate(_text(file).splitlines(), 1):
        if line.strip():
            made.append(_row(file, at, line))
    return made


def _row(file: Path, at: int, line: str) -> Prompt:
    try:
        row: Any = json.loads(line)
        text = row["prompt"]
    except (ValueError, TypeError, KeyError):
        text = None
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f'eval.prompts={file} has no prompt in line {at}: write rows such as {{"prompt": "Hello"}}.')
    return Prompt(str(row.get("id", f"line-{at}")), text, row["language"] if "language" in row else _detected(text))


def _detected(text: str) -> str | None:
    """Language of a prompt that says none; None for a prompt without enough letters."""
    if sum(languages.scripts(text).values()) < languages.LETTERS:
        return None
    return languages.detect(text, set(languages.SCRIPTS))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"eval.prompts={file} cannot be read ({error}): give a UTF-8 text or jsonl file.") from error
