"""Runs of the save, reopen and merge matrix: `python matrix.py RUN_FOLDER...` is one rank that trains them in turn."""

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState

IDS = torch.tensor([[2049, 84, 104, 101, 2050, 1, 77, 2048]])
ADDED = torch.tensor([[2051, 84, 104, 101, 2052, 2050]])


def logits(network: Any, *, added: bool) -> torch.Tensor:
    """Of the tokens that the tokenizer has; grown matrices are padded."""
    ids = ADDED if added else IDS
    network.eval()  # DeepSpeed's engine does not return itself
    with torch.no_grad():
        result: torch.Tensor = network(input_ids=ids.to(network.device)).logits
    return result[..., : 2053 if added else 2051].float().cpu()


def train(folder: Path) -> None:
    """Train a prepared run in this process, and write the logits of the trained model beside what was saved."""
    from sft_exp import final, request, train
    from sft_exp.rundir import RunDir

    AcceleratorState._reset_state(reset_partial_state=False)
    save, run = final.save, RunDir(folder)

    def save_and_look(trainer: Any, *others: Any) -> None:
        save(trainer, *others)
        network = trainer.model_wrapped if trainer.is_deepspeed_enabled else trainer.model
        found = logits(network, added=bool(run_request.experiment.model.special_tokens))
        if trainer.is_world_process_zero():
            torch.save(found, folder / "logits.pt")

    run_request = request.read(run.request)
    final.save = save_and_look  # type: ignore[assignment]
    try:
        train.train(run_request, run)
    finally:
        final.save = save


if __name__ == "__main__":
    torch.distributed.destroy_process_group = lambda *_: None  # the ranks stay together for the next run
    for argument in sys.argv[1:]:
        train(Path(argument))
