"""`python -m sft_exp.prepare RUN_DIR`: read, check, label and store the rows, once and in one process."""

import sys
from pathlib import Path

from sft_exp import checkpoint, faults, request, rundir
from sft_exp.rundir import RunDir


def prepare(run: RunDir) -> None:
    """Write the prepared rows to the cache and what became of them to `data.json`."""
    from sft_exp import dataset
    from sft_exp.tokenizer import load_tokenizer

    experiment = request.read(run.request).experiment
    # A GGUF file is converted here, by one process, before the ranks look for it.
    if experiment.model.gguf:
        checkpoint.resolve(experiment.model)
    tokenizer = load_tokenizer(experiment.model, preparing=True)
    prepared = dataset.prepare(experiment.dataset, tokenizer, cache=checkpoint.cache_folder() / "data")
    rundir.write_json(run.data, prepared)


def main() -> None:
    """Prepare; leave a fault behind if it fails."""
    run = RunDir(Path(sys.argv[1]))
    try:
        prepare(run)
    except BaseException as error:
        faults.write(run, "prepare", error)
        raise


if __name__ == "__main__":
    main()
