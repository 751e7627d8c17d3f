"""Several machines of one run: who is first, and the line over which their parents hear from each other.

The ranks find each other through torch elastic. Nothing there notices a machine that stands still, so the parents
exchange one line of text every second: silence means that a machine or the network between them is gone.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from sft_exp.errors import ConfigError, RunFailed
from sft_exp.schema import Hw

SILENCE_S = 30.0
"""Seconds without a word after which a machine counts as gone."""
GATHER_S = 600.0
"""Seconds in which all machines have to be started."""
FAREWELL_S = 5.0
"""Seconds in which machines that are just being started are told that another was refused."""


def index(environment: Mapping[str, str] = os.environ) -> int:
    """Number of this machine, 0 for the first: SFT_EXP_MACHINE, else SLURM's node number.

    Raises ConfigError if it is no number.
    """
    text = environment.get("SFT_EXP_MACHINE") or environment.get("SLURM_NODEID") or "0"
    if not text.isdigit():
        raise ConfigError(f"SFT_EXP_MACHINE={text} is no machine's number: use 0 for the first, 1 for the next.")
    return int(text)


def address(rendezvous: str) -> tuple[str, int]:
    """Host and port of the first machine."""
    host, _, port = rendezvous.rpartition(":")
    return host, int(port)


def ranks_port(rendezvous: str) -> int:
    """Port over which the ranks of all machines meet: the one after that of their parents."""
    return address(rendezvous)[1] + 1


def common_port(hw: Hw) -> int | None:
    """Port of the ranks where all machines have to know it; None on one machine, or without an address."""
    return ranks_port(hw.rendezvous) if hw.machines > 1 and hw.rendezvous else None


def is_address(rendezvous: str | None) -> bool:
    """Whether `address` can read it and the next port exists."""
    host, _, port = (rendezvous or "").rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 65535


VERBS = {"refused": "was refused", "stopped": "was stopped"}
"""How the outcome of a run is told."""


class Peer:
    """The other end of a connection between two parents; a thread beats and listens."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        self.name = name
        self.messages: list[dict[str, Any]] = []
        self._connection = connection
        self._heard = time.monotonic()
        self._closed = False
        connection.settimeout(1.0)
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, **message: Any) -> None:
        """Send a message; an empty one is a beat. A lost connection is noticed by `lost`."""
        with suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def expect(self, key: str, seconds: float = SILENCE_S) -> Any:
        """Value of the first message that has the key. Raises RunFailed if the other end says no, is gone or silent."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            gone = self.lost()  # before the messages are read: the last one may say why
            for message in self.messages:
                if key in message:
                    return message[key]
            if sentence := self.refusal() or gone:
                raise RunFailed(sentence)
            time.sleep(0.05)
        raise RunFailed(f"{self.name} did not answer in {seconds:.0f} s: see its own output.")

    def refusal(self) -> str | None:
        """What the other end has said about its end, if it was not a good one."""
        if sentence := self.last("failed"):
            return str(sentence)
        if (outcome := self.last("end")) in (None, "finished"):
            return None
        return f"the run on {self.name} {VERBS.get(outcome, outcome)}: {self.last('message')}"

    def last(self, key: str) -> Any:
        """Value of the newest message that has the key, or None."""
        return next((message[key] for message in reversed(self.messages) if key in message), None)

    def lost(self) -> str | None:
        """Why the other end is gone, if it is."""
        if self._closed:
            return f"{self.name} ended without a word: its process was killed or the machine went down."
        silent = time.monotonic() - self._heard
        if silent > SILENCE_S:
            return f"{self.name} has not been heard of for {silent:.0f} s: it stands still, or the network is down."
        return None

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _listen(self) -> None:
        rest = b""
        while not self._closed:
            self.send()
            try:
                data = self._connection.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                data = b""
            self._closed = not data
            self._heard = time.monotonic() if data else self._heard
            *lines, rest = (rest + data).split(b"\n")
            self.messages += [message for line in lines if (message := json.loads(line))]
            time.sleep(0.2)


class First:
    """The first machine's end: all others are gathered, then watched."""

    def __init__(self, rendezvous: str, count: int) -> None:
        self.count = count
        self.peers: dict[int, Peer] = {}
        self._met: list[Peer] = []
        """Who has called, in that order; a beat answers at once, whatever this machine is busy with."""
        self._ended = False
        try:
            self._listener = socket.create_server(address(rendezvous))
        except OSError as error:
            raise ConfigError(
                f"hw.rendezvous={rendezvous} cannot be opened here ({error.strerror}): name this machine's address "
                "and a free port, or start this machine with another SFT_EXP_MACHINE."
            ) from error
        self._listener.settimeout(1.0)
        threading.Thread(target=self._meet, daemon=True).start()

    def gather(self, folder: str, overrides: list[str]) -> None:
        """Wait for all others and tell them the run folder. Raises ConfigError or RunFailed."""
        deadline = time.monotonic() + GATHER_S
        greeted = 0
        while len(self.peers) < self.count - 1:
            if time.monotonic() > deadline:
                raise RunFailed(f"{len(self.peers) + 1} of {self.count} machines were started in {GATHER_S:.0f} s.")
            for peer in self._met[greeted:]:
                self._greet(peer, folder, overrides)
                greeted += 1
            self.check()
            time.sleep(0.05)
        for peer in self.peers.values():
            if problem := peer.expect("ready"):
                raise ConfigError(problem)

    def check(self) -> None:
        """Raises RunFailed if another machine is gone or has failed."""
        for peer in self.peers.values():
            gone = peer.lost()
            if sentence := peer.last("failed") or gone:
                raise RunFailed(sentence)

    def end(self, outcome: str, message: str) -> None:
        """Tell the others how the run ended, once; those that are about to call are waited for."""
        if self._ended:
            return
        self._ended = True
        deadline = time.monotonic() + FAREWELL_S
        while len(self._met) < self.count - 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        self._listener.close()
        for peer in self._met:
            peer.send(end=outcome, message=message)

    def _meet(self) -> None:
        while not self._ended:
            with suppress(OSError):  # nobody has called for a second, or the end
                self._met.append(Peer(self._listener.accept()[0], "a machine"))

    def _greet(self, peer: Peer, folder: str, overrides: list[str]) -> None:
        number = int(peer.expect("machine"))
        peer.name = f"machine {number}"
        if problem := peer.expect("problem"):
            raise ConfigError(*(f"{peer.name}: {line}" for line in problem.split("\n")))
        if not 0 < number < self.count or number in self.peers:
            raise ConfigError(f"SFT_EXP_MACHINE={number} is not one of 1 to {self.count - 1}, each once: renumber.")
        if peer.expect("overrides") != overrides:
            raise ConfigError(f"machine {number} was started with other overrides: use the same on all machines.")
        self.peers[number] = peer
        peer.send(folder=folder)


@contextmanager
def first(hw: Hw) -> Iterator[First | None]:
    """The first machine's end of a run on several machines; what ends the block early reaches the others."""
    if hw.machines < 2 or not is_address(hw.rendezvous):
        yield None  # an address that cannot be read is refused by the rules
        return
    line = First(str(hw.rendezvous), hw.machines)
    try:
        yield line
    except BaseException as error:
        line.end("refused" if isinstance(error, ConfigError) else "stopped", str(error))
        raise


def join(
    rendezvous: str, number: int, overrides: list[str], problem: str = "", seconds: float = GATHER_S,
    wait: Callable[[float], None] = time.sleep,
) -> Peer:  # fmt: skip
    """Another machine's end; `problem` is why this machine cannot take part.

    Raises RunFailed if the first machine is not there.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            connection = socket.create_connection(address(rendezvous), timeout=5)
        except OSError:
            wait(1.0)
            continue
        peer = Peer(connection, "machine 0")
        peer.send(machine=number)
        peer.send(problem=problem)
        peer.send(overrides=overrides)
        return peer
    raise RunFailed(f"hw.rendezvous={rendezvous} did not answer in {seconds:.0f} s: start machine 0.")
