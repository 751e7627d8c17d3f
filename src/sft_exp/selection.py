"""Rows -> distinct conversations, with a count of what is left out."""

import hashlib
import json
import marshal
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from sft_exp.chunks import Item
from sft_exp.conversation import BadRow, Conversation, UnknownColumns
from sft_exp.normalize import normalize
from sft_exp.prepared import Prepared
from sft_exp.rows import Row
from sft_exp.schema import Dataset
from sft_exp.sources import Source


class Selection:
    """Chooses the rows that can be encoded and notes the others in the report."""

    def __init__(self, report: Prepared, config: Dataset, sources: Sequence[Source], *, distinct: bool = True) -> None:
        self._report = report
        self._config = config
        self._sources = sources
        self._distinct = distinct
        self._seen: set[bytes] = set()
        self._unknown_columns: dict[str, None] = {}
        self._recognised = False

    def choose(self) -> Iterator[Item]:
        """Yield the rows that can be encoded, of each source up to its limit."""
        for part, source in enumerate(self._sources):
            filled: set[str] = set()
            for row in islice(source.read(), source.limit):
                self._report.rows += 1
                self._report.sources[source.name]["rows"] += 1
                filled.add(row.place.file)
                conversation = self._conversation(row)
                if conversation is not None:
                    yield row.place, part, conversation
            self._report.empty_files += _before_last(source.files, filled, limited=source.limit is not None)
        if not self._recognised:
            self._report.unknown_columns = list(self._unknown_columns)

    def _conversation(self, row: Row) -> Conversation | None:
        """What the row says, if that can be trained and was not there before."""
        try:
            if row.reason:
                raise BadRow(row.reason, row.detail)
            conversation = normalize(row.value, role_map=self._config.role_map, columns=self._config.columns)
            self._recognised = True
            if self._distinct and self._is_known(row.value):
                raise BadRow("duplicate", "")
        except RecursionError:
            self._report.drop(row.place, "invalid_json", "nested too deeply")
            return None
        except BadRow as error:
            self._note_columns(error)
            self._report.drop(row.place, error.reason, error.detail)
            return None
        return conversation

    def _is_known(self, value: Any) -> bool:
        """Whether the whole row was there before; one that says the same under another id is split by content."""
        known = len(self._seen)
        self._seen.add(hashlib.sha256(_bytes_of(value)).digest()[:16])
        return len(self._seen) == known

    def _note_columns(self, error: BadRow) -> None:
        if isinstance(error, UnknownColumns):
            self._unknown_columns.update(dict.fromkeys(error.columns[:50]))
        else:
            self._recognised = True


def _before_last(files: Sequence[str], filled: set[str], *, limited: bool) -> list[str]:
    """Files without a row; with a limit those behind the last row were perhaps never read."""
    read = max((at for at, file in enumerate(files) if file in filled), default=-1) if limited else len(files)
    return [file for file in files[:read] if file not in filled]


def _bytes_of(row: dict[str, Any]) -> bytes:
    """The same bytes for the same columns and values."""
    columns = sorted(row.items())
    try:
        return marshal.dumps(columns, 2)  # without references, which depend on more than the value; four times as fast
    except ValueError:  # a table's dates and decimals
        return json.dumps(columns, default=str).encode()
