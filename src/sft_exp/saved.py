"""The saved weights, reopened: whole, and as many as were trained."""

import json
import math
import struct
from pathlib import Path

from sft_exp.errors import RunFailed


def require_whole(folder: Path, trained: int) -> None:
    """Raise RunFailed if the safetensors files of a folder hold fewer values than were trained, or are cut off.

    ZeRO-3 leaves empty tensors behind where weights were not gathered, and a full disk a file that ends too early;
    `from_pretrained` would then draw weights at random, with no more than a warning.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise RunFailed(f"{folder} holds no weights after saving: look into the logs, and keep the checkpoints.")
    found = sum(map(values, files))
    if found < trained:
        raise RunFailed(
            f"{folder} holds {found:,} of {trained:,} trained values: it is not whole; keep the checkpoints and save "
            "again from the newest one with resume=RUN_FOLDER."
        )


def values(file: Path) -> int:
    """Values in a safetensors file, by its header. Raises RunFailed if the file ends before they do."""
    with file.open("rb") as stream:
        size = int(struct.unpack("<Q", stream.read(8))[0])
        header = json.loads(stream.read(size))
    header.pop("__metadata__", None)
    end = 8 + size + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if file.stat().st_size < end:
        raise RunFailed(
            f"{file} ends after {file.stat().st_size:,} of {end:,} bytes: free disk space, and save again from the "
            "newest checkpoint with resume=RUN_FOLDER."
        )
    return sum(math.prod(entry["shape"]) for entry in header.values())
