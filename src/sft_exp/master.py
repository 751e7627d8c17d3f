"""fp32 copies of 16-bit weights: the model computes with the 16-bit ones, the optimizer moves the copies.

A step at a small learning rate is often smaller than the distance between two bf16 values and would be lost
(Micikevicius et al. 2018, section 3.1). DeepSpeed keeps such copies by itself; this does it for any optimizer of torch.
"""

from typing import Any

import torch

KEY = "master"
"""Entry of the optimizer's saved state that holds the copies, in the order of its parameters."""


class Masters:
    """The copies behind an optimizer, which from now on holds them in place of the model's own parameters."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Replace the 16-bit parameters of an optimizer that has not made a step yet."""
        assert not optimizer.state, "the optimizer has states of the 16-bit weights already"
        self.pairs: list[tuple[torch.nn.Parameter, torch.nn.Parameter]] = []
        """16-bit parameter of the model and its fp32 copy."""
        for group in optimizer.param_groups:
            group["params"] = [self._copy(parameter) for parameter in group["params"]]
        optimizer.register_step_pre_hook(self._take_gradients)
        optimizer.register_step_post_hook(self._give_weights)
        optimizer.register_state_dict_post_hook(self._save)
        optimizer.register_load_state_dict_pre_hook(self._load)

    def _copy(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        if parameter.dtype not in (torch.bfloat16, torch.float16):
            return parameter
        copy = torch.nn.Parameter(parameter.detach().float())
        self.pairs.append((parameter, copy))
        return copy

    def _take_gradients(self, *_: Any) -> None:
        """Hand the gradients on in fp32; each 16-bit one is let go at once, so that they never lie there twice."""
        for parameter, copy in self.pairs:
            copy.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None

    def _give_weights(self, *_: Any) -> None:
        with torch.no_grad():
            torch._foreach_copy_([parameter for parameter, _ in self.pairs], [copy for _, copy in self.pairs])
        for _, copy in self.pairs:
            copy.grad = None

    def _save(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, KEY: [copy.detach() for _, copy in self.pairs]}

    def _load(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            for (_, copy), saved in zip(self.pairs, state[KEY], strict=True):
                copy.copy_(saved)
        return {key: value for key, value in state.items() if key != KEY}
