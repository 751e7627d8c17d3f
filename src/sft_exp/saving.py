"""Saved folders that older loaders read as well: transformers 5 writes files that 4.57 refuses or misreads.

Today's loader reads the rewritten files as it reads its own.
"""

import json
from pathlib import Path
from typing import Any

ROOM = ("is_local", "local_files_only", "backend")
"""Entries on how the tokenizer was loaded here, which mean nothing elsewhere."""
Json = dict[str, Any]


def make_portable(folder: Path) -> None:
    """Rewrite `tokenizer_config.json` and, where there is one, `config.json` of a saved folder."""
    template = folder / "chat_template.jinja"
    text = template.read_text(encoding="utf-8") if template.is_file() else None
    _rewrite(folder / "tokenizer_config.json", lambda written: tokenizer_config(written, text))
    _rewrite(folder / "config.json", model_config)


def tokenizer_config(written: Json, template: str | None) -> Json:
    """Settings that both loaders understand.

    4.57 knows no class `TokenizersBackend`, takes `extra_special_tokens` for a mapping, and finds the chat template of
    a tokenizer here. 5 drops one of the two lists of special tokens in silence where both are there.
    """
    made = {key: value for key, value in written.items() if key not in ROOM}
    if made.get("tokenizer_class") == "TokenizersBackend":
        made["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(made.get("extra_special_tokens"), list):
        made["additional_special_tokens"] = made.pop("extra_special_tokens")
    if template is not None:
        made["chat_template"] = template
    return made


def model_config(written: Json) -> Json:
    """Rotary settings under their old names too: 4.57 falls back to a base of 10,000 without a word."""
    made = dict(written)
    if isinstance(made.get("text_config"), dict):
        made["text_config"] = model_config(made["text_config"])
    rope = made.get("rope_parameters")
    if not isinstance(rope, dict) or "rope_theta" not in rope:  # of layers that differ there was no old form
        return made
    made["rope_theta"] = rope["rope_theta"]
    if rope.get("rope_type", "default") != "default":
        made["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"}
    return made


def _rewrite(file: Path, change: Any) -> None:
    if file.is_file():
        made = change(json.loads(file.read_text(encoding="utf-8")))
        file.write_text(json.dumps(made, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
