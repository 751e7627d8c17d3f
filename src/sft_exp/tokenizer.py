"""The tokenizer of a model, with the configured chat template and further tokens.

transformers is imported inside the functions, and by its tokenizer module only: that takes under a second and leaves
torch out, while AutoTokenizer takes three.
"""

import datetime
import hashlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from sft_exp import training_template
from sft_exp.checkpoint import SHIPPED_TOKENIZER, TOKENIZER_PATTERNS, looks_local, not_loadable, resolve
from sft_exp.errors import ConfigError
from sft_exp.schema import TRAINING_TEMPLATE, Model, Weights

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SHIPPED = SHIPPED_TOKENIZER
_CLOCK = b"strftime_now"
"""How a chat template asks for the time."""


def load_tokenizer(model: Model, *, preparing: bool = False) -> "PreTrainedTokenizerFast":
    """Load the tokenizer; a token that the vocabulary already has keeps its id and its kind.

    With `preparing` its chat template is the one that writes the training tokens, which is never saved.
    """
    tokenizer = _load_plain(model)
    if model.chat_template == TRAINING_TEMPLATE:
        if preparing and not _takes_shipped(model):  # the shipped template loses nothing
            tokenizer.chat_template = training_template.require(tokenizer)
    elif model.chat_template:
        tokenizer.chat_template = _read_template(model.chat_template)
    _add(tokenizer, model)
    if tokenizer.pad_token is None:
        # Harmless: padding is masked by length, not by id (`loss` never loses a real end token).
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def identity(model: Model) -> list[str]:
    """Everything that decides token ids and rendered text: digests of the files, the template, further tokens.

    The day is one of these things where the template writes the date.
    """
    _, folder = _locate(model)
    files = sorted({file for pattern in TOKENIZER_PATTERNS for file in folder.glob(pattern) if file.is_file()})
    contents = {file.name: file.read_bytes() for file in files}
    digests = [f"{name} {hashlib.sha256(content).hexdigest()}" for name, content in contents.items()]
    own = model.chat_template not in (None, TRAINING_TEMPLATE)
    template = _read_template(str(model.chat_template)) if own else str(model.chat_template)
    written = [template.encode()] if own else list(contents.values())
    today = [f"on {datetime.date.today()}"] if any(_CLOCK in text for text in written) else []
    return [*digests, template, *today, *model.special_tokens]


def _add(tokenizer: "PreTrainedTokenizerFast", model: Model) -> None:
    """Add the new tokens. Raises ConfigError where the tokenizer would cut one of them in pieces."""
    from tokenizers import AddedToken

    # As special tokens they would vanish from text decoded with skip_special_tokens=True. Not normalised: a tokenizer
    # that writes small letters would never find `<CHUNK>`.
    added = [AddedToken(token, normalized=False, special=False) for token in new_tokens(model, tokenizer)]
    tokenizer.add_tokens(added, special_tokens=False)
    for token in model.special_tokens:
        ids = tokenizer.encode(f"a{token}b {token}\n{token}", add_special_tokens=False)
        if ids.count(tokenizer.convert_tokens_to_ids(token)) != 3:
            raise ConfigError(
                f"model.special_tokens: the tokenizer cuts {token!r} in pieces inside a text, because it is an "
                "ordinary piece of the vocabulary or part of another token: choose a mark such as <|name|>."
            )


def new_tokens(model: Model, tokenizer: "PreTrainedTokenizerFast | None" = None) -> list[str]:
    """Those of `model.special_tokens` that the tokenizer as published does not have: their rows need a first value."""
    known = (tokenizer or _load_plain(model)).get_vocab()
    return [token for token in dict.fromkeys(model.special_tokens) if token not in known]


def _load_plain(model: Model) -> "PreTrainedTokenizerFast":
    """Read the files and change nothing. tokenizer.json is taken as it is; AutoTokenizer converts other formats."""
    name, folder = _locate(model)
    try:
        if (folder / "tokenizer.json").is_file() and not model.trust_remote_code:
            from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(str(folder))
        from transformers import AutoTokenizer

        tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=model.trust_remote_code
        )
        return tokenizer
    except (OSError, ValueError, ImportError) as error:
        if any(folder.glob("*.model")) and importlib.util.find_spec("sentencepiece") is None:
            raise ConfigError(
                f"The tokenizer of {name} is a sentencepiece file, which a package reads that is missing here: "
                "pip install sentencepiece, or set model.tokenizer to a folder with tokenizer.json."
            ) from error
        raise not_loadable("tokenizer", name, error) from error


def _takes_shipped(model: Model) -> bool:
    return model.tokenizer is None and model.weights is Weights.random


def _locate(model: Model) -> tuple[str, Path]:
    """Return the tokenizer's name for messages and the local folder that holds its files."""
    if _takes_shipped(model):
        return "the shipped tokenizer", SHIPPED
    name = model.tokenizer or resolve(model)
    if looks_local(name):
        folder = Path(name).expanduser()
        if not folder.is_dir():
            field = "model.tokenizer" if model.tokenizer else "model.path"
            raise ConfigError(f"{field}={name} is not a folder: give a folder with tokenizer.json, or a hub id.")
        return name, folder
    from huggingface_hub import snapshot_download

    # One listing for all files: an unreachable hub then fails at once, not after five retries for each file.
    # `revision` is the model's; a tokenizer of another repository is taken from its main branch.
    revision = None if model.tokenizer else model.revision
    try:
        return name, Path(snapshot_download(name, revision=revision, allow_patterns=list(TOKENIZER_PATTERNS)))
    except (OSError, ValueError) as error:
        raise not_loadable("tokenizer", name, error) from error


def _read_template(path: str) -> str:
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(f"model.chat_template={path} is not a file: give the path of a jinja template.")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"model.chat_template={path} cannot be read ({error}): save it as UTF-8 text.") from error
    if not text.strip():
        raise ConfigError(f"model.chat_template={path} is empty: write a jinja template into it, or leave it out.")
    return text
