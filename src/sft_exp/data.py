"""`python -m sft_exp data ...`: prepare the rows and show what became of them, without training."""

import shlex

from sft_exp import check, data_report, prepare, resolve, rundir
from sft_exp.errors import ConfigError
from sft_exp.machine import look
from sft_exp.preview import on_terminal
from sft_exp.request import Request, to_plain
from sft_exp.rules import blank, dataset, model, tokens

RULES = (blank, model, tokens, dataset)


def show(request: Request) -> None:
    """Print the report and write it to a folder. Raises ConfigError if the rows should not be trained."""
    experiment = resolve.resolve(request.experiment, look())
    check.refuse(check.Findings([sentence for rule in RULES for sentence in rule.problems(experiment)], []))
    report, problems = prepare.report(experiment)
    folder = rundir.data_folder(experiment)
    try:
        prepare.write(report, problems, folder)
    except OSError as error:
        raise ConfigError(f"cannot write the report to {folder}: {error.strerror}; set outputs=FOLDER.") from error
    print(data_report.text(to_plain(report), colour=on_terminal()))
    print(f"\nreport   {folder / 'data_report.html'}")
    if problems:
        raise ConfigError(*problems)
    print(f"\nnext:\n  {shlex.join(['python', '-m', 'sft_exp', *_words(request)])}")


def _words(request: Request) -> list[str]:
    """What trains on this: the words as typed, with flags such as --config-dir; of a sweep those of this job."""
    several = {"-m", "--multirun"} & set(request.argv)
    return request.overrides if several else request.argv[1:]
