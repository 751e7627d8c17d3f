"""Whether a trained model will stop: its end token must be in the labels, in what is saved for `generate`, and in the
saved tokenizer. Each alone lets answers run on."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def problems(data: Mapping[str, Any], folder: Path, *, end_wanted: bool = True) -> Iterator[str]:
    """One sentence for each place where the end token is missing.

    `data` is `data_report.json`, `folder` the saved model or adapter. Without a chat template nothing is known to end
    an answer, and nothing is said; nor of the labels where their end was left out on purpose (`end_wanted`).
    """
    end, text = data["end_token"], data["end_text"]
    if end is None:
        return
    if end_wanted and (not data["kept"] or data["rows_without_end"] >= data["kept"]):
        yield f"labels: no row trains the end token {text!r}, so the model was not taught to stop: see data_report.txt."
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        if name == "config.json" and not file.exists():  # an adapter has none
            continue
        ids = _ids(file)
        if end not in ids:
            yield (
                f"{name}: its eos_token_id is {sorted(ids) or 'not set'} and an answer ends with {text!r}, id {end}: "
                "generate() would run on; set it there."
            )
    if (eos := _end_of_tokenizer(folder)) != end:
        yield (
            f"tokenizer: its end token has id {eos} and an answer ends with {text!r}, id {end}: loaders that take "
            "the tokenizer's would run on; set eos_token there."
        )


def _ids(file: Path) -> set[int]:
    value = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.exists() else None
    return set(value if isinstance(value, list) else [value]) - {None}


def _end_of_tokenizer(folder: Path) -> int | None:
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    eos = settings.get("eos_token")
    eos = eos["content"] if isinstance(eos, dict) else eos
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    added = {token["content"]: int(token["id"]) for token in tokenizer["added_tokens"]}
    found = added.get(eos)
    vocab = tokenizer["model"].get("vocab")
    return found if found is not None or not isinstance(vocab, dict) else vocab.get(eos)
