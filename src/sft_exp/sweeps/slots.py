"""Device slots: which cards a job gets, and whether it can start now."""

from collections.abc import Sequence

from sft_exp.schema import Device, Hw

CPU = -1
"""The CPU among the devices, which has slots as a card has."""


class Slots:
    """Free slots of each card and of the CPU; a job takes one of each card that it uses."""

    def __init__(self, cards: Sequence[int], per_device: int) -> None:
        self.per_device = per_device
        self.free = dict.fromkeys([CPU, *cards], per_device)

    def take(self, hw: Hw, named: Sequence[int] | None) -> list[int] | None:
        """Devices for a job with a resolved profile, or None if it has to wait; `named` cards are taken as they are."""
        found = self._find(hw, named)
        if found is not None:
            for device in found:
                self.free[device] -= 1
        return found

    @property
    def room(self) -> bool:
        """Whether any slot is free."""
        return any(self.free.values())

    def give(self, devices: Sequence[int]) -> None:
        """Take back what an ended job had."""
        for device in devices:
            self.free[device] += 1

    def _find(self, hw: Hw, named: Sequence[int] | None) -> list[int] | None:
        if hw.device is Device.cpu:
            return [CPU] if self.free[CPU] else None
        if named:
            for card in named:  # a card that the shell's CUDA_VISIBLE_DEVICES leaves out
                self.free.setdefault(card, self.per_device)
            return list(named) if all(self.free[card] for card in named) else None
        cards = [card for card in self.free if card != CPU and self.free[card]]
        # Cards that nobody uses come first, so that jobs share one only when they must.
        cards.sort(key=lambda card: -self.free[card])
        count = hw.processes or 1
        return cards[:count] if len(cards) >= count else None


def threads(cores: int, hw: Hw, per_device: int) -> int:
    """CPU threads for each rank of a job on the CPU, of which `per_device` run at a time."""
    return max(1, cores // (per_device * (hw.processes or 1)))
