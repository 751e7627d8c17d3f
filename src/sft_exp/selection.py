"""Rows -> distinct conversations, with a count of what is left out."""

import hashlib
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from sft_exp.conversation import BadRow, Conversation, UnknownColumns
from sft_exp.normalize import normalize
from sft_exp.prepared import Prepared
from sft_exp.rows import Place, Row
from sft_exp.schema import Dataset


class Selection:
    """Chooses the rows that can be encoded and notes the others in the report."""

    def __init__(self, report: Prepared, config: Dataset) -> None:
        self._report = report
        self._config = config
        self._seen: set[bytes] = set()
        self._unknown_columns: dict[str, None] = {}
        self._recognised = False

    @property
    def strange(self) -> list[str]:
        """Columns of the rows, if no row at all was in a known format."""
        return [] if self._recognised else list(self._unknown_columns)

    def choose(self, source: Iterator[Row]) -> Iterator[tuple[Place, Conversation]]:
        """Yield the rows that can be encoded, up to `limit` rows read."""
        for row in islice(source, self._config.limit):
            self._report.rows += 1
            if row.reason:
                self._report.drop(row.place, row.reason, row.detail)
                continue
            try:
                conversation = normalize(row.value, role_map=self._config.role_map, columns=self._config.columns)
                key = _row_key(row.value)
            except RecursionError:
                self._report.drop(row.place, "invalid_json", "nested too deeply")
                continue
            except BadRow as error:
                self._note_columns(error)
                self._report.drop(row.place, error.reason, error.detail)
                continue
            self._recognised = True
            if key in self._seen:
                self._report.drop(row.place, "duplicate", "")
                continue
            self._seen.add(key)
            yield row.place, conversation

    def _note_columns(self, error: BadRow) -> None:
        if isinstance(error, UnknownColumns):
            self._unknown_columns.update(dict.fromkeys(error.columns))
        else:
            self._recognised = True


def _row_key(value: Any) -> bytes:
    # The whole row: one that says the same under another id was meant to be there, and is split by content.
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).digest()
