"""Which data files a path names: a file, a folder, a glob, a shipped sample, or a list of these."""

import glob
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from sft_exp.errors import ConfigError

ASSETS = Path(__file__).parent / "assets"
_TEXT = (".json", ".jsonl", ".csv", ".tsv")
SUFFIXES = (*_TEXT, ".parquet", ".arrow", *(f"{suffix}{packed}" for packed in (".gz", ".zst") for suffix in _TEXT))

_ADDRESS = re.compile(r"(\w+):/+(.*)")
"""What is left of https://HOST/FILE or hf://ORG/NAME in an absolute path, which has no double slashes."""


def find_files(paths: str | list[str], option: str = "dataset.path") -> list[Path]:
    """List the data files that `option` names: those of each path sorted, a file that is named twice only once.

    Raises ConfigError with a sentence for each path that names none.
    """
    found: dict[Path, Path] = {}
    problems: list[str] = []
    for path in [paths] if isinstance(paths, str) else paths:
        try:
            for file in _found(path, option):
                found[file.resolve()] = file
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    return list(found.values())


def _found(pattern: str, option: str) -> list[Path]:
    if pattern.startswith("sample:"):
        return [_sample(pattern, option)]
    path = Path(pattern).expanduser()
    if path.is_file() and not _readable(path):
        raise ConfigError(f"{option}={pattern} is not one of {' '.join(SUFFIXES)}: convert or rename it.")
    if splits := _splits(path):
        raise ConfigError(
            f"{option}={pattern} holds the splits {', '.join(splits)}: give one of them, such as {pattern}/{splits[0]}."
        )
    found = sorted(file for file in _candidates(path, f"{option}={pattern}") if file.is_file() and _readable(file))
    if not found:
        raise ConfigError(_nothing(pattern, path, option))
    return found


def _nothing(pattern: str, path: Path, option: str) -> str:
    """Why a path names no file."""
    kind = f"{option.rpartition('.')[0]}.kind"
    if address := _ADDRESS.search(pattern):
        given = f"{option}={address[1]}://{address[2]}"
        return f"{given} is an address: download it first, or set {kind}=hub for a dataset on the hub."
    if path.is_dir():
        what = "holds no data file"
    elif path.exists():
        what = "is neither a file nor a folder"
    else:
        what = "does not exist"
    hub = "" if path.exists() or path.suffix or "*" in pattern else f"; for a dataset on the hub set {kind}=hub"
    return f"{option}={pattern} {what}: give a file, a folder or a glob ({' '.join(SUFFIXES)}){hub}."


def _candidates(path: Path, name: str) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        found = list(_below(path, name))
    else:
        found = [Path(match) for match in glob.glob(str(path), recursive=True)]  # noqa: PTH207 - Path.glob refuses absolute patterns
    saved = {folder: _saved(folder) for folder in {file.parent for file in found}}
    return [file for file in found if (names := saved[file.parent]) is None or file.name in names]


def _below(folder: Path, name: str) -> Iterator[Path]:
    """Files in a folder and its subfolders, linked ones too, but for hidden ones. Raises ConfigError if one is shut."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # one that has just been removed holds nothing
            raise ConfigError(f"{name} cannot be searched, {error.filename}: {error.strerror}; name its files instead.")

    seen: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        real = os.path.realpath(place)
        folders[:] = [] if real in seen else [below for below in folders if not below.startswith(".")]
        seen.add(real)
        yield from (Path(place, file) for file in names if not file.startswith("."))


def _sample(pattern: str, option: str) -> Path:
    name = pattern.removeprefix("sample:")
    shipped = sorted(file.name for file in ASSETS.glob("*") if _readable(file))
    if name not in shipped:
        raise ConfigError(
            f"{option}={pattern} is not shipped: use {' or '.join(f'sample:{other}' for other in shipped)}."
        )
    return ASSETS / name


def _readable(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES)


def _saved(folder: Path) -> set[str] | None:
    """Names of the files that hold the rows of a `save_to_disk` folder; None for any other folder.

    Besides them it holds metadata and, after a later `map`, caches that are arrow files too.
    """
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        return {file["filename"] for file in state["_data_files"]}
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _splits(folder: Path) -> list[str]:
    """Splits of a folder that `DatasetDict.save_to_disk` wrote; training on all of them is never meant."""
    try:
        return [
            str(split) for split in json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        ]
    except (OSError, ValueError, LookupError, TypeError):
        return []
