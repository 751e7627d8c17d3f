"""Sentences that refuse prepared data which should not be trained; none means that it may be."""

from collections.abc import Iterator

from sft_exp import normalize
from sft_exp.prepared import Prepared
from sft_exp.schema import Dataset, Loss, Train

ENDS = 0.99
"""Share of the rows whose end lies inside max_length that must train the end token."""


def problems(report: Prepared, config: Dataset, train: Train) -> list[str]:
    """Why nothing should be trained on this; the first reason hides those that follow from it."""
    if not report.rows:
        return [f"{report.source} has no rows: give a file that has some."]
    if report.unknown_columns:
        return [_unknown_columns(report)]
    if report.bad / report.rows > config.max_bad_fraction or not report.kept:
        return _bad_rows(report, config)
    if unused := list(_parts(report, config)):
        return unused
    ends = _ends(report) if config.train_end else ()
    return [*ends, *_masks(report, config), *_evaluation(report, train)]


def _parts(report: Prepared, config: Dataset) -> Iterator[str]:
    """A part of a mixture that gives nothing was not meant, and with weights it empties the others."""
    for name, part in report.sources.items() if config.mixture else ():
        option = f"dataset.mixture.{name}"
        if not part["rows"]:
            yield f"{option} has no rows: give it a file that has some, or leave it out."
        elif not part["kept"]:
            yield f"{option} has {part['rows']} rows and none is kept (the report says why): mend them or leave it out."
        elif not part["used"] and not report.streamed:
            yield (
                f"{option}.weight={config.mixture[name].weight:g} uses none of its {part['kept']} conversations beside "
                "the other weights: raise it, or leave the part out."
            )


def _unknown_columns(report: Prepared) -> str:
    known = ", ".join(f"{name} ({' + '.join(columns)})" for name, columns in normalize.FORMATS.items())
    columns = report.unknown_columns
    return (
        f"{report.source} has no row in a known format, only the columns {', '.join(columns)}: name them by "
        f"dataset.columns, such as +dataset.columns.{columns[0]}=prompt; the formats and their columns are {known}."
    )


def _bad_rows(report: Prepared, config: Dataset) -> list[str]:
    least = min(1.0, int(report.bad / report.rows * 1000 + 1) / 1000)
    remedy = f"mend them or raise dataset.max_bad_fraction={config.max_bad_fraction:g} to {least:g}"
    head = f"{report.source} has rows that cannot be trained, {report.bad} of {report.rows}"
    return [
        f"{head}: {remedy if report.kept else 'mend them'}.",
        *(
            f"  {reason}: {count} rows, first {'; '.join(report.examples[reason])}."
            for reason, count in report.dropped.items()
            if reason != "duplicate"
        ),
    ]


def _ends(report: Prepared) -> Iterator[str]:
    """A model that never sees the end of an answer never stops."""
    missing = report.ends_missing > (1 - ENDS) * report.ends_inside
    if not missing and (not report.chats or report.chats_without_end < report.chats):
        return
    if report.end_token is None:
        mark = f"'{report.end_text}', which is no single token" if report.end_text else "nothing"
        yield (
            f"the chat template ends an assistant turn with {mark}, so the model would not learn to stop: set "
            "model.chat_template=FILE.jinja to one that fits the tokenizer, or add the mark by model.special_tokens."
        )
    elif missing:
        yield (
            f"only {report.ends_inside - report.ends_missing} of {report.ends_inside} rows whose end lies inside "
            f"dataset.max_length={report.max_length} train the end token, so the model would not learn to stop: "
            "set model.chat_template=FILE.jinja to one that ends every answer alike."
        )
    else:
        yield (
            f"dataset.max_length={report.max_length} cuts off the end of every answer in {report.source}, so the "
            "model would not learn to stop: raise it."
        )


def _masks(report: Prepared, config: Dataset) -> Iterator[str]:
    """In a conversation of several turns the questions are never trained, unless that was asked for."""
    if config.loss is Loss.assistant and report.fully_trained_chats:
        yield (
            f"{report.fully_trained_chats} of {report.multi_turn_chats} conversations of several turns in "
            f"{report.source} would be trained whole, questions included: set model.chat_template=FILE.jinja to one "
            "that writes the user's turns, or ask for it by dataset.loss=all."
        )


def _evaluation(report: Prepared, train: Train) -> Iterator[str]:
    wants = next((key for key in ("eval_steps", "early_stopping", "load_best") if getattr(train, key)), None)
    if wants and not report.eval_rows:
        yield (
            f"train.{wants}={getattr(train, wants)} needs evaluation rows and {report.source} has no two different "
            f"conversations to spare one: give more rows, or set train.{wants} to null."
        )
