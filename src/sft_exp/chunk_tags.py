"""How answers use the tags of the shipped chunks.jsonl, as added tokens or as plain text: `eval.metrics` of its sweep.

`probe/added_tokens` knows only tokens that were added; these scores mean the same whether they were or not.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from sft_exp.probes import thinking

TAGS = ("<chunk>", "</chunk>")


def scores(answers: Sequence[str], references: Sequence[str]) -> Mapping[str, float]:
    """`tagged`: share of the answers with a tag; `tags_well_formed`: share with pairs that open and close in order.

    `tags_to_reference`: tags of all answers as a multiple of those in the references; 1 is right, 0 where these have
    none. The last pair may be open, since an answer can be cut off.
    """
    found = [len(thinking.occurrences(answer, TAGS)) for answer in answers]
    formed = [thinking.well_formed(answer, TAGS, ended=False) for answer in answers]
    wanted = sum(len(thinking.occurrences(reference, TAGS)) for reference in references)
    return {
        "tagged": fmean(map(bool, found)),
        "tags_well_formed": fmean(bool(count) and right for count, right in zip(found, formed, strict=True)),
        "tags_to_reference": sum(found) / wanted if wanted else 0.0,
    }
