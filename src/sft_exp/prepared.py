"""The data report: what became of every row, as it stands in `data_report.json`."""

from dataclasses import dataclass, field
from typing import Any

from sft_exp.conversation import Conversation
from sft_exp.labels import Encoded
from sft_exp.preview import VISIBLE
from sft_exp.rows import Place

EXAMPLES = 5
"""Places that are remembered for each reason."""


@dataclass(kw_only=True)
class Prepared:
    """What was prepared. Shares are between 0 and 1; lengths are in tokens, of whole conversations before the cut."""

    fingerprint: str
    folder: str
    """Where the arrow files are."""
    source: str
    max_length: int
    streamed: bool = False
    """Only the first rows were looked at; the others are read while training."""
    encodings: dict[str, str] = field(default_factory=dict)
    """Text encoding of each file that is not plain UTF-8."""
    rows: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    """Rows per reason code."""
    repaired: dict[str, int] = field(default_factory=dict)
    """Kept rows per kind of mend."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """First places, with detail, per reason of a drop or repair and of part_truncated."""
    empty_files: list[str] = field(default_factory=list)
    """Files without any row."""
    unknown_columns: list[str] = field(default_factory=list)
    """The rows' columns, if no row was in a known format."""
    sources: dict[str, dict[str, int]] = field(default_factory=dict)
    """Rows read, kept and used of each part of a mixture."""
    formats: dict[str, int] = field(default_factory=dict)
    """Kept rows per format."""
    languages: dict[str, float] = field(default_factory=dict)
    """Share per language code, in a sample."""
    train_rows: int = 0
    eval_rows: int = 0
    test_rows: int = 0
    lengths: dict[str, int] = field(default_factory=dict)
    """Quantiles p50, p95, p99 and max of the kept rows' lengths."""
    histogram: list[list[int]] = field(default_factory=list)
    """Pairs of a length and the number of kept rows up to it (and above the one before)."""
    turns: dict[str, int] = field(default_factory=dict)
    """Kept rows per number of trained turns."""
    tokens: int = 0
    """Tokens of the kept rows after the cut."""
    trained_tokens: int = 0
    part_truncated: int = 0
    """Kept rows that lost tokens to max_length."""
    lost_tokens: int = 0
    """Tokens that kept rows lost to max_length."""
    dropped_tokens: int = 0
    """Tokens of rows whose whole answer lies beyond max_length."""
    fully_trained_chats: int = 0
    """Conversations of several turns in which every token is trained."""
    multi_turn_chats: int = 0
    ends_inside: int = 0
    """Kept rows whose last turn ends inside max_length."""
    ends_missing: int = 0
    """... but does not train an end token."""
    rows_without_end: int = 0
    """Kept rows that train no end token."""
    chats: int = 0
    """Kept rows that are conversations."""
    chats_without_end: int = 0
    """Those that train no end token."""
    think_blocks: int = 0
    """Reasoning blocks in trained text."""
    think_blocks_in_rows: int = 0
    """Reasoning blocks in the assistant turns of the kept rows."""
    control_text_rows: int = 0
    """Kept rows whose text names control tokens; they were tokenised as text."""
    added_system: str = ""
    """System prompt that the chat template adds where a row has none."""
    split_marks: list[str] = field(default_factory=list)
    """Marks that the chat template writes and that are no tokens, so that the model sees them in pieces."""
    end_text: str = ""
    """What the chat template, or without one the tokenizer, puts at the end of an answer."""
    end_token: int | None = None
    """Id of the end token; None if `end_text` does not end with a control token."""
    text_end: str = ""
    """The tokenizer's own end token, as published."""
    control_tokens: list[str] = field(default_factory=list)
    """Control tokens that the chat template writes."""
    added_tokens: dict[str, dict[str, int]] = field(default_factory=dict)
    """Times that each of `model.special_tokens` is in the training rows: `there`, and `trained` of these."""
    base_model: str = ""
    """What to do about a checkpoint that looks like a base model; empty if it does not."""
    previews: list[dict[str, Any]] = field(default_factory=list)
    """A few rows as the model sees them: place, pieces of text with their kind (`preview`), and where they were cut."""
    batches: dict[str, Any] = field(default_factory=dict)
    """Empty places at this run's batch: micro_batch, packing, and the shares `padded` and `packed`."""

    @property
    def bad(self) -> int:
        """Dropped rows; duplicates are not bad."""
        return sum(count for reason, count in self.dropped.items() if reason != "duplicate")

    def drop(self, place: Place, reason: str, detail: str) -> None:
        """Count a row that is not trained."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self._note(place, reason, detail)

    def keep(self, place: Place, conversation: Conversation, encoded: Encoded) -> None:
        """Count a row that is trained."""
        self.kept += 1
        _count(self.formats, conversation.format)
        _count(self.turns, str(encoded.turns))
        for reason in conversation.repairs:
            _count(self.repaired, reason)
            self._note(place, reason)
        if encoded.truncated:
            self.part_truncated += 1
            self.lost_tokens += encoded.length - len(encoded.input_ids)
            self._note(place, "part_truncated")
        if conversation.kind == "chat" and encoded.turns > 1:
            self.multi_turn_chats += 1
            self.fully_trained_chats += encoded.trained_tokens >= len(encoded.input_ids) - 1
        self.chats += conversation.kind != "text"
        self.chats_without_end += conversation.kind != "text" and not encoded.end_trained
        self.tokens += len(encoded.input_ids)
        self.trained_tokens += encoded.trained_tokens
        self.ends_inside += encoded.end_inside
        self.ends_missing += encoded.end_inside and not encoded.last_end_trained
        self.rows_without_end += not encoded.end_trained
        self.think_blocks += encoded.think_blocks
        self.think_blocks_in_rows += encoded.row_think_blocks
        self.control_text_rows += encoded.control_text

    def _note(self, place: Place, reason: str, detail: str = "") -> None:
        """Keep the first places of a reason, on one line each and without what commands a terminal.

        Half characters in a detail would break every later writer.
        """
        if len(found := self.examples.setdefault(reason, [])) < EXAMPLES:
            text = f"{place} {detail}".strip().encode(errors="replace").decode()
            found.append(" ".join(text.split()).translate(VISIBLE))


def _count(counts: dict[str, int], key: str) -> None:
    counts[key] = counts.get(key, 0) + 1
