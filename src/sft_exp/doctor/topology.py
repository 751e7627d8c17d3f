"""Links between the chosen cards: NVLink, peer-to-peer copies, PCIe width."""

from sft_exp.doctor.line import Line, ok, skip, warn
from sft_exp.doctor.nvml import Driver
from sft_exp.machine import Card
from sft_exp.schema import Experiment


def lines(experiment: Experiment, cards: list[Card], driver: Driver) -> list[Line]:
    """One line on the links between cards, one on each card's link to the host."""
    known = [card.index for card in cards if card.index in driver.cards]
    if not known:
        return [skip("links", "no card to look at")]
    return [*_between(experiment, known, driver), *_to_host(known, driver)]


def _between(experiment: Experiment, known: list[int], driver: Driver) -> list[Line]:
    if len(known) == 1:
        return [skip("links", "one card: nothing travels between cards")]
    off = experiment.hw.env.get("NCCL_P2P_DISABLE") == "1"
    nvlink = all(driver.cards[index].links for index in known)
    pairs = [(a, b, driver.peers.get((a, b), "unknown")) for a in known for b in known if a < b]
    without = [f"{a}-{b} ({state})" for a, b, state in pairs if state != "ok"]
    links = f"NVLink ({driver.cards[known[0]].links} per card)" if nvlink else "no NVLink"
    if nvlink and off:
        return [
            warn(
                "links",
                f"{links}, and hw={experiment.hw.name} turns peer-to-peer copies off",
                "use a profile without NCCL_P2P_DISABLE, such as hw=auto",
            )
        ]
    if without and not off:
        return [
            warn(
                "links",
                f"{links}; no peer-to-peer copies between cards {', '.join(without)}",
                "expect slower collectives, which pass through host memory and need room in /dev/shm",
            )
        ]
    copies = "turned off by the profile" if off else "between all cards"
    return [ok("links", f"{links}; peer-to-peer copies {copies}")]


def _to_host(known: list[int], driver: Driver) -> list[Line]:
    cards = [driver.cards[index] for index in known]
    widths = [(card.index, card.pcie_width, card.pcie_most) for card in cards]
    if any(width is None or most is None for _, width, most in widths):
        return [skip("PCIe", "the driver does not tell the width")]
    narrow = [f"card {index} x{width} of x{most}" for index, width, most in widths if (width or 0) < (most or 0)]
    if narrow:
        return [warn("PCIe", ", ".join(narrow), "move the card to a wider slot if offload or loading is slow")]
    return [ok("PCIe", ", ".join(f"card {index} x{width}" for index, width, _ in widths))]
