"""Overrides that Hydra's grammar does not take, and how the same is written so that it does."""

import re
import shlex
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

_NAME_MAX = 255
"""Characters of a file's name; asking for a longer one is an error."""


def unreadable(override: str) -> str:
    """One sentence about an override that Hydra cannot read, with the quoting that works where there is one."""
    key, given, value = override.partition("=")
    if given and not key.isascii():
        return f"cannot read {override}: keys are ASCII letters here; one of your own can be any in a YAML file."
    if not given or not re.fullmatch(r"[+~]{0,2}[\w./@-]+", key, re.ASCII):
        return f"cannot read {override}: write KEY=VALUE, such as train.learning_rate=1e-4."
    if value[:1] in ("[", "{") and not (len(value) < _NAME_MAX and Path(value).exists()):
        mended = listed(key, value) if value[0] == "[" and value[-1] == "]" else None
        close = "]" if value[0] == "[" else "}"
        hint = (
            "put quotes around each text and around all" if mended else f"put quotes around it and end it with {close}"
        )
        return f"cannot read {override}: {hint}, as in {mended or shlex.quote(f'{key}={value[0]}...{close}')}."
    if reads(mended := quoted(override)):
        return f"cannot read {override}: such a text has quotes of its own inside the shell's, so write {mended}."
    return f"cannot read {override}: write KEY=VALUE, with quotes around values that hold blanks, commas or brackets."


def quoted(override: str) -> str:
    """An override whose value is a text, with quotes for Hydra inside and for the shell around it."""
    key, _, value = override.partition("=")
    return shlex.quote(f"{key}={_text(value)}")


def listed(key: str, value: str) -> str | None:
    """A list with quotes around each item, where Hydra can read that."""
    items = [_text(item.strip()) for item in value[1:-1].split(",")]
    mended = shlex.quote(f"{key}=[{','.join(items)}]")
    return mended if reads(mended) else None


def reads(typed: str) -> bool:
    """Whether Hydra can read what the shell makes of one word."""
    try:
        OverridesParser.create().parse_overrides(shlex.split(typed))
    except HydraException:
        return False
    return True


def _text(value: str) -> str:
    """A text as Hydra's grammar quotes it: a backslash counts only before a quote."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    inner = re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + found[2].replace('"', '\\"'), value)
    return f'"{inner}"'
