"""Counting what goes through the model: tokens without padding, trained tokens, samples, time and memory."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

FIELDS = ("tokens", "slots", "trained", "samples")
"""Real tokens, places in the batch (padding included), tokens with a label, conversations."""


class Meter:
    """Counts of this rank since the last reading; sums over all ranks when read."""

    def __init__(self, device: torch.device, seen: int) -> None:
        self.device = device
        self.seen = seen
        """Real tokens since the first start of the run, over all ranks."""
        self._counts = torch.zeros(len(FIELDS), dtype=torch.int64, device=device)
        self._since = time.perf_counter()
        self._left_out = 0.0

        self._peaks = (0, 0)
        """Bytes allocated and reserved on the card at their highest, of what is over."""

    def start(self) -> None:
        """Begin the first interval."""
        self._since, self._left_out = time.perf_counter(), 0.0
        self._peaks = (0, 0)

    def count(self, inputs: dict[str, Any]) -> None:
        """Add one forward pass. Stays on the device: reading a number here would stall a GPU at each step."""
        ids, labels = inputs["input_ids"], inputs["labels"]
        mask = inputs.get("attention_mask")
        positions = inputs.get("position_ids")
        tokens = mask.sum() if mask is not None else torch.tensor(ids.numel(), device=self.device)
        # In a packed row a conversation begins wherever positions start again.
        samples = (positions == 0).sum() if positions is not None else torch.tensor(len(ids), device=self.device)
        slots = torch.tensor(ids.numel(), device=self.device)
        self._counts += torch.stack([tokens, slots, (labels != -100).sum(), samples])

    @contextmanager
    def leave_out(self) -> Iterator[None]:
        """Time spent in here (evaluation, saving) does not count as training time."""
        begun = time.perf_counter()
        yield
        self._left_out += time.perf_counter() - begun

    @contextmanager
    def own_peak(self) -> Iterator[None]:
        """A card's memory taken in here does not count as training's; a process's peak on the CPU cannot be reset."""
        if self.device.type != "cuda":
            yield
            return
        self._peaks = self.peaks()
        yield
        torch.cuda.empty_cache()  # the next steps want other sizes
        torch.cuda.reset_peak_memory_stats(self.device)

    def peaks(self) -> tuple[int, int]:
        """Bytes that torch allocated and reserved on this card at their highest."""
        allocated, reserved = torch.cuda.max_memory_allocated(self.device), torch.cuda.max_memory_reserved(self.device)
        return max(allocated, self._peaks[0]), max(reserved, self._peaks[1])

    def peak_memory_gib(self) -> float:
        """Largest memory of any rank so far in GiB: what torch allocated on the card, or the process's host memory."""
        if self.device.type == "cuda":
            peak = self.peaks()[0] / 2**30
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        value = torch.tensor(peak, dtype=torch.float64, device=self.device)
        if dist.is_initialized():
            dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return float(value)

    def read(self) -> tuple[dict[str, int], float]:
        """Sums over all ranks since the last reading, and this rank's training seconds."""
        if dist.is_initialized():
            dist.all_reduce(self._counts)
        counts = dict(zip(FIELDS, self._counts.tolist(), strict=True))
        now = time.perf_counter()
        seconds = now - self._since - self._left_out
        self._counts.zero_()
        self._since, self._left_out = now, 0.0
        self.seen += counts["tokens"]
        return counts, max(seconds, 1e-9)


def flops_per_token(model: torch.nn.Module) -> float:
    """Floating-point operations of forward and backward pass per token: 4N + 2T.

    N counts the weights used in matrix products, T those of them that are trained: 2N forward, 2N for the gradients of
    the activations, 2T for those of the weights (Kaplan et al. 2020, appendix B, where N = T gives 6N). The attention
    products and recomputation are left out. An untied input embedding is a lookup and not a product.
    """
    head = model.get_output_embeddings()
    table = model.get_input_embeddings()
    lookup = {id(p) for p in table.parameters()}
    if head is not None:
        lookup -= {id(p) for p in head.parameters()}
    used = [p for p in model.parameters() if id(p) not in lookup]
    return 4.0 * sum(map(size, used)) + 2.0 * sum(size(p) for p in used if p.requires_grad)


def size(parameter: torch.nn.Parameter) -> int:
    """Elements of a parameter, also where ZeRO-3 has split it or four-bit weights are stored two to a byte."""
    if hasattr(parameter, "ds_numel"):
        return int(parameter.ds_numel)
    shape = getattr(getattr(parameter, "quant_state", None), "shape", None)
    return int(torch.Size(shape).numel()) if shape is not None else parameter.numel()
