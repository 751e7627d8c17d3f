"""Learning-rate schedules and optimizers of the installed transformers, and the arguments that a schedule takes."""

import ast
import functools
from collections.abc import Iterator
from typing import Any

from sft_exp import installed
from sft_exp.nearest import closest

SCHEDULERS = (
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt",
    "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy",
)  # fmt: skip
"""Values of transformers.SchedulerType; a test compares them."""
USUAL = ("adamw_torch", "adamw_torch_fused")
"""Optimizers of every transformers: for these nothing has to be read."""
ALIKE = 4
"""Letters at the start of names that belong together."""
GIVEN = {"self", "optimizer", "num_warmup_steps", "num_training_steps", "last_epoch"}
"""Parameters of a schedule that the trainer fills in."""
NO_ARGUMENTS = ("constant", "constant_with_warmup")
"""Schedules to which `get_scheduler` hands none of the user's arguments on."""
SOURCE = "transformers/optimization.py"
PLATEAU = (
    "mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "min_lr", "eps",
)  # fmt: skip
"""Parameters of torch's ReduceLROnPlateau; a test compares them."""


def problems(scheduler: str, arguments: dict[str, Any]) -> Iterator[str]:
    """One sentence for a schedule that is none, and for each argument that it does not take or lacks."""
    if scheduler not in SCHEDULERS:
        yield (
            f"train.scheduler={scheduler} is not a schedule.{closest(scheduler, SCHEDULERS)} Schedules: "
            f"{', '.join(SCHEDULERS)}."
        )
        return
    if not arguments and scheduler != "warmup_stable_decay":  # the only one that must have one
        return
    known, required = parameters(scheduler)
    takes = f"it takes {', '.join(known)}" if known else "it takes none"
    for name, value in arguments.items():
        annotation = known[name].annotation if name in known else None
        if annotation and (wanted := installed.type_problem(annotation, value)):
            yield f"train.scheduler_args.{name}={value} is not possible: it takes {wanted}."
        if name not in known:
            yield (
                f"train.scheduler_args.{name} is no argument of train.scheduler={scheduler}.{closest(name, known)} "
                f"Leave it out: {takes}."
            )
    for name in required:
        if name not in arguments:
            yield f"train.scheduler={scheduler} needs +train.scheduler_args.{name}=VALUE."


def optimizer_problem(name: str) -> str | None:
    """One sentence for a name that transformers does not have; None also where transformers is not installed."""
    known = () if name in USUAL else optimizers()
    if not known or name in known:
        return None
    # `adamw` is nearer to adamw_torch than to grokadamw, which difflib takes.
    alike = next((other for other in known if other.startswith(name[:ALIKE])), None)
    hint = f" Did you mean {alike}?" if alike else closest(name, known)
    return f"train.optimizer={name} is not an optimizer.{hint} Optimizers: {', '.join(known)}."


@functools.cache
def optimizers() -> tuple[str, ...]:
    """Values of transformers' OptimizerNames."""
    return tuple(installed.enum_values("transformers/training_args.py", "OptimizerNames").values())


def parameters(scheduler: str) -> tuple[dict[str, ast.arg], list[str]]:
    """Arguments that a user may give to a schedule, and those of them that must be given."""
    if scheduler in NO_ARGUMENTS:
        return {}, []
    if scheduler == "reduce_lr_on_plateau":
        return {name: ast.arg(name) for name in PLATEAU}, []
    if scheduler == "greedy":
        known, required = installed.parameters(SOURCE, "GreedyLR", method="__init__")
    else:
        known, required = installed.parameters(SOURCE, _function(scheduler))
    return {name: known[name] for name in known if name not in GIVEN}, [name for name in required if name not in GIVEN]


def _function(scheduler: str) -> str:
    """Name of the function that `TYPE_TO_SCHEDULER_FUNCTION` maps a schedule to."""
    members = installed.enum_values("transformers/trainer_utils.py", "SchedulerType")
    table = installed.assigned(SOURCE, "TYPE_TO_SCHEDULER_FUNCTION")
    assert isinstance(table, ast.Dict)
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Attribute) and isinstance(value, ast.Name) and members[key.attr] == scheduler:
            return value.id
    return ""
