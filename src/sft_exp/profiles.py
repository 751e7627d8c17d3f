"""The shipped configuration folder, and which of its hardware profiles describes given cards."""

from pathlib import Path
from typing import Any

from sft_exp.machine import Card

MEMORY_TOLERANCE = 0.1
"""A card of 32 GiB reports 31.7, one sold with 141 GB reports 139.8."""


def conf_dir() -> Path:
    """Folder of the config groups: inside the installed package, or at the top of a checkout."""
    here = Path(__file__).resolve().parent
    return here / "conf" if (here / "conf").is_dir() else here.parents[1] / "conf"


def matching(cards: list[Card], processes: int | None = None) -> str:
    """Shipped profile for these cards, as many of them as can be used, or of `processes`; else `auto`."""
    wanted = range(len(cards), 0, -1) if processes is None else [processes]
    found = {}
    for file in sorted((conf_dir() / "hw").glob("*.yaml")):
        profile = _read(file)
        if cards and all(_fits(profile, card) for card in cards):
            found[profile.get("processes")] = file.stem
    return next((found[count] for count in wanted if count in found), "auto")


def _fits(profile: dict[str, Any], card: Card) -> bool:
    memory = profile.get("memory_gib")
    return (
        profile.get("capability") == card.capability
        and memory is not None
        and abs(memory - card.memory_gib) <= MEMORY_TOLERANCE * memory
    )


def smaller(card: Card, described_gib: float) -> bool:
    """Whether a card has clearly less memory than a profile says."""
    return card.memory_gib < (1 - MEMORY_TOLERANCE) * described_gib


def _read(file: Path) -> dict[str, Any]:
    """Values of an option with those of the options it is built on."""
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(OmegaConf.load(file))
    assert isinstance(values, dict)
    merged: dict[str, Any] = {}
    for base in values.pop("defaults", []):
        merged |= _read(file.with_name(f"{base}.yaml"))
    return merged | {str(key): value for key, value in values.items()}
