"""`python -m sft_exp.prepare RUN_DIR`: read, check, label and store the rows, once and in one process."""

import os
import sys
from pathlib import Path
from typing import Any

from sft_exp import added_tokens, checkpoint, data_report, dataset, faults, page, request, rundir, verdict
from sft_exp.errors import ConfigError
from sft_exp.prepared import Prepared
from sft_exp.rundir import RunDir
from sft_exp.schema import Experiment


def prepare(experiment: Experiment) -> Prepared:
    """The prepared rows and what is known of them. Raises ConfigError where they cannot be read."""
    from sft_exp import tokenizer

    # A GGUF file is converted here, by one process, before the ranks look for it.
    if experiment.model.gguf:
        checkpoint.resolve(experiment.model)
    return dataset.prepare(
        experiment.dataset,
        tokenizer.identity(experiment.model),
        lambda: tokenizer.load_tokenizer(experiment.model, preparing=True),
        cache=checkpoint.cache_folder() / "data",
    )


def report(experiment: Experiment) -> tuple[Prepared, list[str]]:
    """The data report of a run and the sentences that refuse it."""
    prepared = prepare(experiment)
    prepared.batches = _batches(experiment, Path(prepared.folder))
    problems = verdict.problems(prepared, experiment.dataset, experiment.train)
    if prepared.kept:
        prepared.base_model = added_tokens.base_model(prepared, experiment)
        prepared.added_tokens = added_tokens.count(Path(prepared.folder), experiment.model)
        problems += added_tokens.problems(prepared)
    return prepared, problems


def _batches(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """How much of a batch is empty, padded or packed."""
    import numpy as np

    from sft_exp import lengths

    rows, batch = np.load(folder / "train_lengths.npy"), experiment.train.micro_batch or 1
    return {
        "micro_batch": batch,
        "packing": experiment.train.packing,
        "padded": lengths.padded_share(rows, batch),
        "packed": lengths.packed_share(rows, experiment.dataset.max_length),
    }


def write(prepared: Prepared, problems: list[str], folder: Path) -> None:
    """Write the report as text and as a page, then as JSON, which the ranks wait for."""
    data = request.to_plain(prepared)
    rundir.write_text(folder / "data_report.txt", data_report.text(data, colour=False))
    rundir.write_text(folder / "data_report.html", page.page(data, problems))
    rundir.write_json(folder / "data_report.json", data)


def prepare_run(run: RunDir) -> None:
    """Prepare the rows of a run. Raises ConfigError if they should not be trained."""
    prepared, problems = report(request.read(run.request).experiment)
    if problems:
        raise ConfigError(*problems)
    write(prepared, problems, run.path)


def main() -> None:
    """Prepare the rows of a run; leave a fault behind if it fails."""
    run = RunDir(Path(sys.argv[1]))
    # Ranks share the cores and have it off; this process is alone, and twice as fast with it.
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    try:
        prepare_run(run)
    except BaseException as error:
        faults.write(run, "prepare", error)
        raise


if __name__ == "__main__":
    main()
