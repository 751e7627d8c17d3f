"""Mistakes in YAML files of the user's own, as Hydra's messages tell them and as it does not."""

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import yaml

from sft_exp.nearest import closest

GLOBAL = "# @package _global_"
WHOLE = ("experiment", "sweep")
"""Groups whose files speak of the whole configuration, which a first line must say."""


def explain(text: str) -> str | None:
    """The sentence for a message of Hydra about a file; None if it is about something else."""
    for reader in (_no_package_line, _no_mapping, _folder, _base, _defaults, _second):
        if sentence := reader(text):
            return sentence
    return None


def broken(error: BaseException) -> str | None:
    """The sentence for a file that is no YAML or no text; None for another error."""
    if isinstance(error, UnicodeDecodeError):
        where = _undecoded(error)
        return f"{where} is no UTF-8 text ({error.reason} at byte {error.start}): save it as UTF-8."
    if not isinstance(error, yaml.YAMLError):
        return None
    mark, reason = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
    where = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}," if mark else "a configuration file"
    if "duplicate key" in reason:
        return f"{where} holds a key for the second time ({reason}): write it once."
    return (
        f"{where} is no YAML ({reason}): indent with blanks and never with tabs, close quotes and brackets, and put "
        "quotes around texts that hold ': ' or '#'."
    )


def _undecoded(error: UnicodeDecodeError) -> str:
    """The file that was being read, which the error does not say: the stream in a frame of its traceback."""
    trace = error.__traceback__
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            if isinstance(value, io.TextIOWrapper) and isinstance(value.name, str):
                return value.name
        trace = trace.tb_next
    return "a configuration file"


def empty(choices: Mapping[str, str], folders: Iterable[str], shipped: Path) -> Iterator[str]:
    """One sentence for each chosen option of the user's whose file says nothing."""
    own = [folder for source in folders if (folder := Path(source.removeprefix("file://"))) != shipped]
    for group, option in choices.items():
        for folder in own:
            file = folder / group / f"{option}.yaml"
            # Of equal names Hydra takes the first in its search path, which is ours.
            if (shipped / group / f"{option}.yaml").is_file() or not file.is_file():
                continue
            if yaml.safe_load(file.read_text(encoding="utf-8")) is None:
                yield (
                    f"{group}={option}: {file} is empty: write values into it, or a defaults list with the option it "
                    "starts from."
                )


def _file(text: str) -> str | None:
    match = re.search(r"In '([^']+)': ", text)
    return match[1] if match else None


def _no_package_line(text: str) -> str | None:
    file, groups = _file(text), "|".join(WHOLE)
    alone = rf"Could not override '[^'@]+@(?:{groups})\.|Key '(?:{groups})' (?:is )?not in 'Experiment'"
    if file is None or not file.startswith(WHOLE) or not re.search(alone, text):
        return None
    return f"{file}.yaml lacks the first line of such a file: start it with {GLOBAL}."


def _no_mapping(text: str) -> str | None:
    file, match = _file(text), re.search(r"Merge error: (\w+) is not a subclass of (\w+)", text)
    whole = "Cannot merge DictConfig with ListConfig" in text
    if file is None or not (match or whole):
        return None
    kind = "a single value" if match and match[1] != "list" else "a list"
    place = f"the fields of {match[2].lower()} belong" if match else "groups and their fields belong"
    return f"{file}.yaml holds {kind} where {place}: write lines such as NAME: VALUE."


def _folder(text: str) -> str | None:
    match = re.search(r"Additional config directory '([^']+)' not found", text)
    if match:
        return f"--config-dir={match[1]} is not a folder: give one that is laid out like conf/, as model/mine.yaml."
    match = re.search(r"Cannot find primary config '([^']+)'", text)
    return f"--config-name={match[1]} is not there: leave it out, config.yaml is always used." if match else None


def _base(text: str) -> str | None:
    match = re.search(r"In '([^']+)': Could not (?:load|find) '([\w/]+)/([^'/]+)'", text)
    if not match or "Available options" in text:
        return None
    folders = [Path(folder) / match[2] for folder in re.findall(r"path=file://(\S.*)", text)]
    options = sorted({file.stem for folder in folders for file in folder.glob("*.yaml")})
    if not options:
        return (
            f"{match[1]}.yaml starts from {match[2]}/{match[3]}, which is not there: write an option of the same group "
            "as - NAME, one of another group as - override /GROUP: NAME."
        )
    return (
        f"{match[1]}.yaml starts from {match[2]}={match[3]}, which is not an option.{closest(match[3], options)} "
        f"Options: {', '.join(options)}."
    )


def _defaults(text: str) -> str | None:
    match = re.search(r"Invalid defaults list in '([^']+)'|In '?([\w/.-]+?)'?: Too many keys in default item", text)
    if not match and "Unsupported type in defaults" not in text:
        return None
    where = f"{match[1] or match[2]}.yaml" if match else "a file"
    return f"the defaults of {where} are no list of names: write each on a line, as - NAME or - override /GROUP: NAME."


def _second(text: str) -> str | None:
    match = re.search(r"Multiple values for ([\w/]+)\. To override a value use 'override [\w/]+: (\S+)'", text)
    if not match:
        return None
    return (
        f"{match[1]} is chosen already: write {match[1]}={match[2]} without a + on the command line, or "
        f"- override /{match[1]}: {match[2]} in the defaults of a file."
    )
