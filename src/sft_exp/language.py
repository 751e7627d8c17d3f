"""Which languages rows are written in, by the library py3langid, on a sample."""

from collections import Counter

from sft_exp.conversation import Conversation

ROWS = 2_000
"""Rows that are looked at, at most."""
LETTERS = 20
"""Letters without which a row is left out: no library tells the language of `4`."""
_CHARACTERS = 1_000


class Sample:
    """Texts of a few rows from the whole of the data, not only from its beginning."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._seen = 0
        self._every = 1

    def add(self, conversation: Conversation) -> None:
        """Take the text of every n-th row, last turn first; when the sample is full n doubles and every second goes."""
        if self._seen % self._every == 0:
            text = "\n".join(str(message["content"]) for message in reversed(conversation.messages))[:_CHARACTERS]
            if sum(map(str.isalpha, text)) >= LETTERS:
                self._texts.append(text)
        self._seen += 1
        if len(self._texts) == ROWS:
            self._texts, self._every = self._texts[::2], self._every * 2

    def shares(self) -> dict[str, float]:
        """Share of the texts per ISO 639-1 code, the largest first."""
        from py3langid import langid  # its model takes half a second

        counts = Counter(str(langid.classify(text)[0]) for text in self._texts)
        return {code: count / len(self._texts) for code, count in counts.most_common()}
