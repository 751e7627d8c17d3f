"""TRL's training templates: the tokenizer's own template, changed so that it loses nothing of a conversation."""

from typing import TYPE_CHECKING

from sft_exp.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def find(tokenizer: "PreTrainedTokenizerBase") -> str | None:
    """The training template for a tokenizer's template, which may be that one itself; None if TRL knows none."""
    from trl.chat_template_utils import get_training_chat_template

    if not tokenizer.chat_template:
        return None
    try:
        return str(get_training_chat_template(tokenizer) or tokenizer.get_chat_template())
    except Exception:  # a ValueError where none fits, and whatever goes wrong in the template when it is tried
        return None


def require(tokenizer: "PreTrainedTokenizerBase") -> str:
    """The training template; a sentence where there is none."""
    found = find(tokenizer)
    if found is None:
        raise ConfigError(
            "model.chat_template=training needs a training template and TRL has none for the tokenizer's "
            f"{'chat template' if tokenizer.chat_template else 'lack of a chat template'}: set "
            "model.chat_template=FILE.jinja, or null to train with the tokenizer's own."
        )
    return found
