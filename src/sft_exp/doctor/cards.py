"""The chosen cards: what they are, what is free on them and who uses them."""

from sft_exp import memory
from sft_exp.doctor.line import Line, fail, judged, ok, skip, warn
from sft_exp.doctor.nvml import CardState, Driver
from sft_exp.machine import Card, Machine
from sft_exp.rules import machine as rules
from sft_exp.schema import Device, Experiment

FREE_SHARE = 0.95
"""Below this share of free memory somebody uses the card, even if the driver does not say who."""


def chosen(experiment: Experiment, machine: Machine) -> list[Card]:
    """Cards that the ranks would run on."""
    if experiment.hw.device is Device.cpu:
        return []
    wanted = experiment.hw.devices
    usable = machine.usable()
    return [card for card in machine.cards if card.index in wanted] if wanted else usable[: experiment.hw.processes]


def profile(experiment: Experiment, machine: Machine) -> list[Line]:
    """Whether the profile describes what is there."""
    hw = experiment.hw
    count = f"{len(machine.cards)} card{'s' if len(machine.cards) != 1 else ''}"
    what = f"hw={hw.name}: {hw.processes} x {hw.device.value}, {hw.precision.value}, {hw.threads} threads per rank"
    return judged("profile", rules.profile(experiment, machine), f"{what}; the machine has {count}")


def lines(experiment: Experiment, machine: Machine, driver: Driver) -> list[Line]:
    """One line per chosen card."""
    cards = chosen(experiment, machine)
    if not cards:
        found = "the run is on the CPU" if experiment.hw.device is Device.cpu else "none that could be used"
        return [skip("cards", found if machine.cards else f"{found}; no NVIDIA driver answers")]
    idle = [index for index, state in driver.cards.items() if free(state)]
    known = [(item, driver.cards[item.index]) for item in cards if item.index in driver.cards]
    return [*(card(item, state, idle) for item, state in known), *room(experiment, [state for _, state in known], idle)]


def room(experiment: Experiment, states: list[CardState], idle: list[int]) -> list[Line]:
    """A line for each card on which others leave less memory than the run surely needs."""
    plan = memory.plan(experiment)
    if plan is None or not experiment.hw.memory_check:
        return []
    need = plan.allocated_gib * (1 - memory.ERROR) + memory.CONTEXT_GIB
    return [
        fail(
            "memory in use",
            f"card {state.index} has {state.free_gib:.1f} of {state.total_gib:.1f} GiB free and this run needs about "
            f"{plan.total_gib:.1f}",
            f"{_others(idle)}, or start it anyway with hw.memory_check=false",
        )
        for state in states
        if not free(state) and need > state.free_gib
    ]


def _others(idle: list[int]) -> str:
    return f"take idle cards with 'hw.devices={idle}'" if idle else "wait, or ask who started it"


def free(state: CardState) -> bool:
    """Whether nobody uses the card."""
    return not state.users and state.free_gib >= FREE_SHARE * state.total_gib


def card(card: Card, state: CardState, idle: list[int]) -> Line:
    """The line of one card; `idle` are cards that could be used in its place."""
    name = f"card {card.index}"
    what = f"{card.name}, compute capability {card.capability}, {state.free_gib:.1f} of {state.total_gib:.1f} GiB free"
    if free(state):
        return ok(name, what)
    users = ", ".join(
        f"pid {user.pid} ({user.name}{'' if user.used_gib is None else f', {user.used_gib:.1f} GiB'})"
        for user in state.users
    )
    return warn(name, f"{what}; used by {users or 'a process that the driver does not show'}", _others(idle))
