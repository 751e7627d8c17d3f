"""Whether an answer is written in the script and the language that its prompt asks for."""

import unicodedata
from collections import Counter

LETTERS = 20
"""Letters of an answer without which neither is judged."""
SCRIPTS = {
    "en": ("LATIN",), "de": ("LATIN",), "fr": ("LATIN",), "es": ("LATIN",), "it": ("LATIN",), "pt": ("LATIN",),
    "zh": ("CJK",), "ja": ("HIRAGANA", "KATAKANA", "CJK"), "ko": ("HANGUL", "CJK"), "ar": ("ARABIC",),
    "ru": ("CYRILLIC",), "hi": ("DEVANAGARI",), "el": ("GREEK",), "he": ("HEBREW",), "th": ("THAI",),
}  # fmt: skip
"""Language (ISO 639-1) -> first words of its letters' Unicode names."""


def scripts(text: str) -> Counter[str]:
    """Letters per script, which is the first word of their Unicode names."""
    return Counter(unicodedata.name(char, "NONE").split()[0].split("-")[0] for char in text if char.isalpha())


def script_kept(text: str, language: str) -> bool | None:
    """Whether most letters are of the language's script; None for few letters or a language not in `SCRIPTS`."""
    counts = scripts(text)
    total = sum(counts.values())
    if total < LETTERS or language not in SCRIPTS:
        return None
    return sum(counts[script] for script in SCRIPTS[language]) * 2 > total


def language_kept(text: str, language: str, candidates: set[str]) -> bool | None:
    """Whether py3langid takes `language` for the likeliest of the candidates; None where the script is not judged."""
    if not (kept := script_kept(text, language)):
        return kept
    return detect(text, candidates | {language}) == language


def detect(text: str, candidates: set[str]) -> str:
    """The likeliest of the candidates, English where none is known to py3langid."""
    from py3langid import langid  # its model takes half a second

    return next((str(code) for code, _ in langid.rank(text) if code in candidates), "en")
