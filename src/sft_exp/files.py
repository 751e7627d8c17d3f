"""Which data files a path names: a file, a folder, a glob, a shipped sample, or a list of these."""

import glob
import itertools
import json
from pathlib import Path

from sft_exp.errors import ConfigError

ASSETS = Path(__file__).parent / "assets"
_TEXT = (".json", ".jsonl", ".csv", ".tsv")
SUFFIXES = (*_TEXT, ".parquet", ".arrow", *(f"{suffix}{packed}" for packed in (".gz", ".zst") for suffix in _TEXT))


def find_files(paths: str | list[str], option: str = "dataset.path") -> list[Path]:
    """List the data files that `option` names: those of each path sorted, a file that is named twice only once.

    Raises ConfigError for a path that names none.
    """
    found = itertools.chain.from_iterable(
        _found(path, option) for path in ([paths] if isinstance(paths, str) else paths)
    )
    return list({file.resolve(): file for file in found}.values())


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
    found = sorted(file for file in _candidates(path) if file.is_file() and _readable(file))
    if not found:
        what = "holds no data file" if path.is_dir() else "does not exist"
        raise ConfigError(f"{option}={pattern} {what}: give a file, a folder or a glob ({' '.join(SUFFIXES)}).")
    return found


def _candidates(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [file for file in path.rglob("*") if not any(p.startswith(".") for p in file.relative_to(path).parts)]
    else:
        found = [Path(match) for match in glob.glob(str(path), recursive=True)]  # noqa: PTH207 - Path.glob refuses absolute patterns
    saved = {folder: _saved(folder) for folder in {file.parent for file in found}}
    return [file for file in found if (names := saved[file.parent]) is None or file.name in names]


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
