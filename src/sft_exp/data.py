"""`python -m sft_exp data ...`: prepare the rows and show what became of them, without training."""

from sft_exp import check, data_report, prepare, resolve, rundir
from sft_exp.errors import ConfigError
from sft_exp.machine import look
from sft_exp.preview import on_terminal
from sft_exp.request import Request, to_plain
from sft_exp.rules import dataset, model, tokens


def show(request: Request) -> None:
    """Print the report and write it to a folder. Raises ConfigError if the rows should not be trained."""
    experiment = resolve.resolve(request.experiment, look())
    rules = (model, tokens, dataset)
    check.refuse(check.Findings([sentence for rule in rules for sentence in rule.problems(experiment)], []))
    report, problems = prepare.report(experiment)
    folder = rundir.data_folder(experiment)
    prepare.write(report, problems, folder)
    print(data_report.text(to_plain(report), colour=on_terminal()))
    print(f"\nreport   {folder / 'data_report.html'}")
    if problems:
        raise ConfigError(*problems)
    print(f"\nnext:\n  {' '.join(['python', '-m', 'sft_exp', *request.overrides])}")
