"""The data report in words: one label and one line for each thing a person should know before training."""

from collections.abc import Iterator, Mapping
from typing import Any

from sft_exp.preview import ansi

MEANINGS = {
    "invalid_json": "what stands on one line is not JSON, has a key twice, or is nested too deeply",
    "invalid_text": "bytes that are not UTF-8, or half a character",
    "wrong_type": "a value of the wrong kind, or unknown columns",
    "empty_content": "a question or answer is empty",
    "unknown_role": "a role that is not known: add it to dataset.role_map",
    "no_assistant_turn": "nobody answers",
    "answer_truncated": "the whole answer lies beyond dataset.max_length",
    "no_trainable_token": "no token of the row would be trained",
    "refused_by_template": "the chat template raises an error",
    "lost_by_template": "the chat template leaves out text",
    "no_reasoning": "the template begins an answer with reasoning and the row has none",
    "duplicate": "the whole row was there before",
    "merged_same_role": "neighbours of the same role were joined",
    "trailing_user_turn": "turns after the last answer were cut off",
    "part_truncated": "the end was cut off at dataset.max_length",
}
"""What each reason code means."""


def lines(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs of a label and what the report says under it; `data` is `data_report.json`."""
    return [*_rows(data), *_content(data), *_tokens(data), *_batches(data)]


def text(data: Mapping[str, Any], *, colour: bool) -> str:
    """The whole report for a terminal."""
    shown = [f"{label:<10}{line}" for label, line in lines(data)]
    for code, count, meaning, places in reasons(data):
        shown.append(f"\n{code}: {count:,} {'row' if count == 1 else 'rows'} ({meaning})")
        shown += [f"  {place}" for place in places]
    for row in data["previews"]:
        shown.append(
            f"\n--- {row['place']}, as the model sees it ({'green' if colour else 'between ⟦ and ⟧'} is trained)"
        )
        shown.append(ansi(row["pieces"], colour))
    return "\n".join(shown)


def reasons(data: Mapping[str, Any]) -> list[tuple[str, int, str, list[str]]]:
    """Reason, number of rows, meaning and first places of everything that was dropped, mended or cut."""
    counts = {**data["dropped"], **data["repaired"]}
    if data["part_truncated"]:
        counts["part_truncated"] = data["part_truncated"]
    return [(code, count, MEANINGS.get(code, ""), data["examples"].get(code, [])) for code, count in counts.items()]


def _rows(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    dropped, repaired = sum(data["dropped"].values()), sum(data["repaired"].values())
    if data["streamed"]:
        yield "stream", "the first rows only; the others are read while training"
    yield "rows", f"{data['rows']:,} read, {data['kept']:,} kept, {repaired:,} of them mended, {dropped:,} dropped"
    for name, part in data["sources"].items() if len(data["sources"]) > 1 else ():
        yield f"  {name}", f"{part['rows']:,} read, {part['kept']:,} kept, {part['used']:,} used"
    sides = [f"{data[f'{name}_rows']:,} {name}" for name in ("train", "eval", "test") if data[f"{name}_rows"]]
    yield "split", ", ".join(sides) or "nothing"
    if data["empty_files"]:
        some = data["empty_files"]
        more = f" and {len(some) - 5:,} more" if len(some) > 5 else ""
        yield "empty", f"no row in {', '.join(some[:5])}{more}: cut off, or meant to be empty?"
    for name, encoding in data["encodings"].items():
        yield "encoding", f"{name} is {encoding}"


def _content(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "formats", ", ".join(f"{name} {count:,}" for name, count in data["formats"].items()) or "none"
    if data["languages"]:
        some = list(data["languages"].items())
        named = [f"{code} {share:.1%}" for code, share in some[:6]]
        yield "languages", ", ".join([*named, *([f"{len(some) - 6} more"] if len(some) > 6 else [])])
    turns = sorted(data["turns"].items(), key=lambda pair: int(pair[0]))
    if turns:
        counts = ", ".join(f"{number} in {count:,} rows" for number, count in turns[:8])
        yield "answers", f"per conversation: {counts}"
    if data["added_system"]:
        yield "system", f"the chat template adds where a row has none: {data['added_system']!r}"
    if data["split_marks"]:
        marks = ", ".join(data["split_marks"])
        yield "marks", f"the chat template writes {marks}, which the tokenizer cuts in pieces: does it fit the model?"
    for token, times in data.get("added_tokens", {}).items():
        only = "" if times["trained"] else ": the model learns to read it, not to write it"
        yield "added", f"{token} {times['there']:,} times in the training rows, {times['trained']:,} trained{only}"
    if data.get("base_model"):
        yield "base", data["base_model"]
    if data["control_text_rows"]:
        yield "control", f"{data['control_text_rows']:,} rows hold names of control tokens, which are tokenised as text"
    if data["think_blocks_in_rows"]:
        yield (
            "reasoning",
            f"{data['think_blocks_in_rows']:,} think blocks in the rows, {data['think_blocks']:,} trained",
        )


def _tokens(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if not data["kept"]:
        return
    lengths = data["lengths"]
    yield (
        "length",
        f"{lengths['p50']:,} tokens in the middle, 95 % up to {lengths['p95']:,}, 99 % up to {lengths['p99']:,}, "
        f"longest {lengths['max']:,}; dataset.max_length={data['max_length']}",
    )
    lost, whole = data["lost_tokens"], data["dropped_tokens"]
    total = data["tokens"] + lost + whole
    cut, gone = data["part_truncated"], data["dropped"].get("answer_truncated", 0)
    if cut or gone:
        rows = data["kept"] + gone
        yield "cut", f"{cut:,} rows ({cut / rows:.1%}) lose their end, {lost:,} tokens ({lost / total:.1%})"
        yield (
            "",
            (
                f"{gone:,} rows ({gone / rows:.1%}) lose their whole answer and are dropped, "
                f"{whole:,} tokens ({whole / total:.1%})"
            ),
        )
    yield "trained", f"{data['trained_tokens']:,} of {data['tokens']:,} tokens ({_share(data):.1%})"
    inside, missing = data["ends_inside"], data["ends_missing"]
    yield "end", f"the end of the answer is trained in {inside - missing:,} of {inside:,} rows that are not cut"


def _share(data: Mapping[str, Any]) -> float:
    return float(data["trained_tokens"]) / max(float(data["tokens"]), 1)


def _batches(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    batches = data.get("batches")
    if batches:
        yield (
            "padding",
            f"{batches['padded']:.1%} of a batch of {batches['micro_batch']}; packed, {batches['packed']:.1%} "
            f"would stay empty (train.packing={str(batches['packing']).lower()})",
        )
