"""What became of the rows, and the sentences that refuse rows which should not be trained."""

from dataclasses import dataclass, field

from sft_exp import normalize
from sft_exp.conversation import Conversation
from sft_exp.errors import ConfigError
from sft_exp.labels import Encoded
from sft_exp.rows import Place
from sft_exp.schema import Dataset
from sft_exp.template import Marks

_EXAMPLES = 5


@dataclass(kw_only=True)
class Prepared:
    """What was prepared, as it stands in report.json."""

    fingerprint: str
    folder: str
    source: str
    encodings: dict[str, str] = field(default_factory=dict)
    """Text encoding of each file that is not plain UTF-8."""
    rows: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    formats: dict[str, int] = field(default_factory=dict)
    """Kept rows per format."""
    train_rows: int = 0
    eval_rows: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    longest: int = 0
    """Tokens of the longest kept row, after the cut."""
    part_truncated: int = 0
    """Kept rows that lost tokens to max_length."""
    rows_without_end: int = 0
    """Kept rows that train no end token."""
    think_blocks: int = 0
    """Reasoning blocks in trained text."""
    control_text_rows: int = 0
    """Kept rows whose text names control tokens; they were tokenised as text."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """First places, with detail, per reason of a drop or repair and of part_truncated."""

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
        self.formats[conversation.format] = self.formats.get(conversation.format, 0) + 1
        for reason in conversation.repairs:
            self.repaired[reason] = self.repaired.get(reason, 0) + 1
            self._note(place, reason)
        if encoded.truncated:
            self.part_truncated += 1
            self._note(place, "part_truncated")
        self.tokens += len(encoded.input_ids)
        self.trained_tokens += encoded.trained_tokens
        self.longest = max(self.longest, len(encoded.input_ids))
        self.rows_without_end += not encoded.end_trained
        self.think_blocks += encoded.think_blocks
        self.control_text_rows += encoded.control_text

    def _note(self, place: Place, reason: str, detail: str = "") -> None:
        """Keep the first places of a reason; half characters in a detail would break every later writer."""
        if len(found := self.examples.setdefault(reason, [])) < _EXAMPLES:
            found.append(f"{place} {detail}".strip().encode(errors="replace").decode())


def refuse_bad(report: Prepared, config: Dataset, strange: list[str]) -> None:
    """Refuse rows with nothing, or with too little, to train on; `strange` are their columns if none was recognised."""
    if not report.rows:
        raise ConfigError(f"{report.source} has no rows: give a file that has some.")
    if strange:
        known = ", ".join(f"{name} ({' + '.join(columns)})" for name, columns in normalize.FORMATS.items())
        raise ConfigError(
            f"{report.source} has no row in a known format, only the columns {', '.join(strange)}: name them by "
            f"dataset.columns, such as +dataset.columns.{strange[0]}=prompt; the formats and their columns are {known}."
        )
    share = report.bad / report.rows
    if share > config.max_bad_fraction or not report.kept:
        remedy = f"mend them or raise dataset.max_bad_fraction={config.max_bad_fraction:g} to {_above(share)}"
        details = [
            f"  {reason}: {count} rows, first {'; '.join(report.examples[reason])}."
            for reason, count in report.dropped.items()
            if reason != "duplicate"
        ]
        head = f"{report.source} has rows that cannot be trained, {report.bad} of {report.rows}"
        raise ConfigError(f"{head}: {remedy if report.kept else 'mend them'}.", *details)


def _above(share: float) -> str:
    return f"{min(1.0, int(share * 1000 + 1) / 1000):g}"


def no_end(report: Prepared, config: Dataset, marks: Marks) -> ConfigError:
    """Say why no kept row trains an end token."""
    if marks.end_token is None:
        mark = f"'{marks.end_text}', which is no single token" if marks.end_text else "nothing"
        return ConfigError(
            f"the chat template ends an assistant turn with {mark}, so the model would not learn to stop: set "
            "model.chat_template=FILE.jinja to one that fits the tokenizer, or add the mark by model.special_tokens."
        )
    return ConfigError(
        f"dataset.max_length={config.max_length} cuts off the end of every answer in {report.source}, so the "
        "model would not learn to stop: raise it."
    )
