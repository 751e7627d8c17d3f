"""The final model: saved whole, readable by older loaders too, reopened and checked, its added tokens measured."""

import json
import time
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sft_exp import movement, reopen, rundir, saving, stopping
from sft_exp.errors import RunFailed
from sft_exp.rundir import RunDir
from sft_exp.schema import Model


@dataclass(frozen=True)
class Added:
    """Tokens whose rows are to be trained, and their rows before."""

    tokens: list[str]
    ids: list[int]
    trained: bool
    before: movement.Rows

    @classmethod
    def watch(cls, model: Model, network: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> "Added":
        """Remember the rows of a fresh network; every rank must call it under ZeRO-3."""
        ids = [tokenizer.convert_tokens_to_ids(token) for token in model.special_tokens]
        return cls(model.special_tokens, ids, model.train_special_tokens, movement.rows(network, ids) if ids else [])


def save(trainer: Any, run: RunDir, data: dict[str, Any], added: Added) -> None:
    """Write the model and `result.json`, which marks the run as complete. Raises RunFailed if what is there is wrong.

    Every rank must call it: they gather the weights together.
    """
    moved = movement.moved(added.before, movement.rows(trainer.model, added.ids)) if added.ids else None
    trainer.save_model(str(run.model))
    if not trainer.is_world_process_zero():
        return
    # An adapter's folder has no generation settings of its own, and its model must stop too.
    trainer.model.generation_config.save_pretrained(str(run.model))
    saving.make_portable(run.model)
    problems = [
        *trainer.reopened.problems,
        *reopen.tokens(run.model, trainer.processing_class, added.tokens),
        *stopping.problems(data, run.model, end_wanted=trainer.request.experiment.dataset.train_end),
        *_unmoved(moved, added, trainer.state.global_step),
    ]
    if moved is not None:
        row = {"step": trainer.state.global_step, "time_ms": int(time.time() * 1000), movement.METRIC: moved}
        with run.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(rundir.finite(row)) + "\n")
    summary = trainer.summary() | {
        "new_rows_moved_min": moved,
        "saved_tensors": trainer.reopened.tensors,
        "not_finite": len(trainer.reopened.not_finite),
        "problems": problems,
    }
    rundir.write_json(run.result, summary)
    if problems:
        raise RunFailed(f"the model was trained and saved, and is not as it should be: {' '.join(problems)}")


def _unmoved(moved: float | None, added: Added, steps: int) -> list[str]:
    if moved != 0 or not added.trained:
        return []
    return [
        f"the rows of {', '.join(added.tokens)} are in part as they were before {steps} steps, so not all of these "
        "tokens were learned: raise train.learning_rate or train.max_steps, or keep the weights in model.dtype=float32."
    ]
