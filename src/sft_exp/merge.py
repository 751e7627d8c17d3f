"""`python -m sft_exp merge RUN --out DIR`: what a run trained, as a folder that needs nothing but transformers."""

import argparse
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from sft_exp import card, devices, launch, quiet, request, rundir, staging, trained
from sft_exp.errors import ConfigError
from sft_exp.machine import Machine, look
from sft_exp.rundir import RunDir

if TYPE_CHECKING:
    from sft_exp.difference import Difference

GIB = 2**30
LIMIT = 0.03
"""Largest relative difference of the logits. Rounding to bf16 made 0.013 of SmolLM2-135M, in 30 layers."""
BYTES = {"auto": 4, "float32": 4, "bfloat16": 2, "float16": 2}
"""--dtype -> most bytes of a weight on disk."""
MARGIN = 1.1
"""Memory and disk beyond the weights themselves."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"merge: {message}; see python -m sft_exp merge --help.")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """What was typed. Raises ConfigError where it cannot be read."""
    parser = _Parser(
        prog="python -m sft_exp merge", description=__doc__, allow_abbrev=False,
        epilog="A QLoRA adapter is merged into its dequantised 4-bit base, the weights that it was trained on.",
    )  # fmt: skip
    add = parser.add_argument
    add("run", metavar="RUN", help="run folder, or the name of a run below outputs/")
    add("--out", required=True, type=Path, metavar="DIR", help="new or empty folder for the model")
    add("--max-difference", type=float, default=LIMIT, metavar="X",
        help=f"write nothing if the logits differ by more, as a share of their spread (default {LIMIT})")  # fmt: skip
    add("--dtype", choices=BYTES, default="auto",
        help="type of the weights; default: that of the base checkpoint; of model/ if all was trained")  # fmt: skip
    add("--device", choices=devices.CHOICES, default="auto", help="default: a card, if the model fits it in fp32")
    found = parser.parse_args(argv)
    if not 0 < found.max_difference < float("inf"):
        raise ConfigError(f"--max-difference={found.max_difference} is not possible: give a share such as {LIMIT}.")
    return found


def show(argv: Sequence[str]) -> None:
    """Merge, compare, write. Raises ConfigError, with nothing written, where the merged model is another one."""
    asked = arguments(argv)
    run, out = trained.find(asked.run), asked.out.expanduser().absolute()
    parameters = int(rundir.read_json(run.result)["parameters"])
    machine = look()
    require_room(out, parameters * BYTES[asked.dtype])
    device = devices.choose(asked.device, machine, parameters * 4 * MARGIN / GIB)
    if device == "cpu":
        require_memory(machine, parameters)
    print("merging: the model is loaded three times, before and after, in fp32 ...", flush=True)
    with launch.stop_on_signal(), staging.staged(out) as folder:
        found = _merged(run, folder, device, asked.dtype)
        if not found.logits <= asked.max_difference:  # NaN, where a weight is too large for float16, is refused too
            raise ConfigError(
                f"the merged model's logits differ by {found.logits:.2g}, more than --max-difference="
                f"{asked.max_difference:g}, so nothing was written: use --dtype float32, or allow more."
            )
        card.write(run, folder, merged=found.sentence)
        size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"merged   {run.name} into {out} ({size / 2**20:,.0f} MiB)\nlogits   {found.sentence}")
    print(f'load it  AutoModelForCausalLM.from_pretrained("{out}")')


def _merged(run: RunDir, folder: Path, device: str, dtype: str) -> "Difference":
    with quiet.libraries(request.read(run.request).experiment):
        import torch

        from sft_exp import merging

        with devices.enough_memory(torch.device(device)):
            return merging.merge(run, folder, torch.device(device), dtype)


def require_room(out: Path, needed: int) -> None:
    """Refuse a folder that holds something, cannot be made, or whose disk has less than `needed` bytes."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out={out} exists and is not empty: give a new folder.")
    existing = next(folder for folder in (out, *out.parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ConfigError(f"--out={out} cannot be made ({existing} cannot be written to): give another folder.")
    if (free := shutil.disk_usage(existing).free) < needed * MARGIN:
        raise ConfigError(
            f"--out={out} has {free / GIB:.1f} GiB free and the model may need {needed * MARGIN / GIB:.1f} GiB: "
            "make room, give another folder or set --dtype bfloat16."
        )


def require_memory(machine: Machine, parameters: int) -> None:
    """Refuse where the weights in fp32 are more than the host has: the kernel would kill the process."""
    needed = parameters * 4 * MARGIN
    if machine.host is not None and machine.host.available < needed:
        raise ConfigError(
            f"merging on the CPU needs {needed / GIB:.1f} GiB of memory and {machine.host.available / GIB:.1f} GiB "
            "are available: free some, or use a card (--device cuda)."
        )
