"""Words of the command line that Hydra's parser would answer with a page of usage."""

import dataclasses
import re
from importlib import metadata

from sft_exp import schema
from sft_exp.errors import ConfigError
from sft_exp.explain import MOVED
from sft_exp.nearest import closest
from sft_exp.quoting import quoted

FLAGS = (
    "--help", "-h", "--hydra-help", "--version", "--cfg", "-c", "--resolve", "--package", "-p", "--run", "-r",
    "--multirun", "-m", "--shell-completion", "-sc", "--config-path", "-cp", "--config-name", "-cn", "--config-dir",
    "-cd", "--experimental-rerun", "--info", "-i",
)  # fmt: skip
"""Hydra's flags; a test compares them."""
WITH_VALUE = {
    "--cfg": "job", "-c": "job", "--config-dir": "FOLDER", "-cd": "FOLDER", "--config-name": "NAME", "-cn": "NAME",
    "--config-path": "FOLDER", "-cp": "FOLDER", "--package": "PACKAGE", "-p": "PACKAGE",
    "--experimental-rerun": "FILE",
}  # fmt: skip
"""Flags that take a value -> what to write for it."""
GROUPS = (*(field.name for field in dataclasses.fields(schema.Experiment) if field.default is dataclasses.MISSING),
          "experiment", "sweep")  # fmt: skip
"""Keys whose values are names of options."""
CFG = ("job", "hydra", "all")


def arranged(words: list[str], commands: list[str]) -> list[str]:
    """Flags first, overrides after them, as Python's argument parser wants it. Raises ConfigError for other words."""
    flags: list[str] = []
    overrides: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, given, value = word.partition("=")
        if not word.startswith("-"):
            overrides.append(word)
        elif name == "--experimental-rerun":  # Hydra would then read nothing else
            raise ConfigError(f"{name} is not possible here: use resume=RUN_FOLDER.")
        elif name not in FLAGS:
            raise ConfigError(_unknown_flag(name, value if given else next(iter(rest), "")))
        else:
            flags.append(word)
            if name in WITH_VALUE and not given:
                flags.append(_value(name, rest))
            elif name in ("--info", "-i") and rest and not re.search(r"[=-]", rest[0]):
                flags.append(rest.pop(0))
    for number, word in enumerate(overrides):
        if ("=" not in word and not word.startswith("~")) or not word.partition("=")[0].strip("+~ "):
            raise ConfigError(_no_override(word, overrides[number - 1] if number else "", commands))
        if match := re.fullmatch(rf"[+]*({'|'.join(GROUPS)})=(\[.*|\s*)", word, re.DOTALL):
            group = match[1]
            raise ConfigError(
                f"{word} chooses no option: write {group}=NAME, or {group}=NAME,NAME with -m to run each."
            )
    return flags + overrides


def _value(name: str, rest: list[str]) -> str:
    """The next word, which belongs to the flag `name`."""
    wanted = WITH_VALUE[name]
    if not rest or rest[0].startswith("-") or ("=" in rest[0] and wanted != "FOLDER"):
        raise ConfigError(f"{name} takes a value and has none: write {name} {wanted}.")
    if name in ("--cfg", "-c") and rest[0] not in CFG:
        raise ConfigError(f"{name} {rest[0]} is not possible: write {name} job.")
    return rest.pop(0)


def _unknown_flag(name: str, value: str) -> str:
    last = name.lstrip("-").replace("-", "_")
    moved = MOVED.get(last)
    if moved is not None:
        hint = f"here it is {moved}"
    elif "." in last or "=" in value:
        hint = "write KEY=VALUE"
    else:
        hint = "write KEY=VALUE, such as train.learning_rate=1e-4"
    near = closest(name, FLAGS) if name.startswith("--") and moved is None else ""
    return f"{name} is no flag: values are set without dashes, {hint}.{near}"


def _no_override(word: str, before: str, commands: list[str]) -> str:
    if not word.strip() or "=" in word:
        return f"'{word}' is no override: write KEY=VALUE, such as train.learning_rate=1e-4."
    if word in commands:
        return f"the command comes first: write python -m sft_exp {word} ..., with the overrides after it."
    if before:
        return (
            f"{word} is no override: write KEY=VALUE; if it belongs to the word before it, quote both: "
            f"{quoted(f'{before} {word}')}."
        )
    return f"{word} is no override: write KEY=VALUE, such as train.learning_rate=1e-4."


def version() -> str:
    """Name and version of this program."""
    try:
        return f"sft_exp {metadata.version('sft_exp')}"
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        return "sft_exp (not installed)"
