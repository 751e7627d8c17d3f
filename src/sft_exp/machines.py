"""Several machines of one run: who is first, and the line over which their parents hear from each other.

The ranks find each other through torch elastic. Nothing there notices a machine that stands still, so the parents
exchange one line of text every second: silence means that a machine or the network between them is gone.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from sft_exp.errors import ConfigError, RunFailed

SILENCE_S = 30.0
"""Seconds without a word after which a machine counts as gone."""
GATHER_S = 600.0
"""Seconds in which all machines have to be started."""


def index(environment: Mapping[str, str] = os.environ) -> int:
    """Number of this machine, 0 for the first: SFT_EXP_MACHINE, else SLURM's node number.

    Raises ConfigError if it is no number.
    """
    text = environment.get("SFT_EXP_MACHINE") or environment.get("SLURM_NODEID") or "0"
    if not text.isdigit():
        raise ConfigError(f"SFT_EXP_MACHINE={text} is no machine's number: use 0 for the first, 1 for the next.")
    return int(text)


def address(rendezvous: str) -> tuple[str, int]:
    """Host and port of the first machine; its ranks use the next port."""
    host, _, port = rendezvous.rpartition(":")
    return host, int(port)


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
        """Value of the first message that has the key. Raises RunFailed if none comes."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not (self._closed and not self.messages):
            for message in self.messages:
                if key in message:
                    return message[key]
            time.sleep(0.05)
        raise RunFailed(f"{self.name} did not answer: see its own output.")

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
        host, port = address(rendezvous)
        try:
            self._listener = socket.create_server((host, port))
        except OSError as error:
            raise ConfigError(
                f"hw.rendezvous={rendezvous} cannot be opened here ({error.strerror}): name this machine's address "
                "and a free port, or start this machine with another SFT_EXP_MACHINE."
            ) from error
        self._listener.settimeout(1.0)

    def gather(self, folder: str, overrides: list[str]) -> None:
        """Wait for all others and tell them the run folder. Raises ConfigError or RunFailed."""
        deadline = time.monotonic() + GATHER_S
        while len(self.peers) < self.count - 1:
            if time.monotonic() > deadline:
                raise RunFailed(f"{len(self.peers) + 1} of {self.count} machines were started in {GATHER_S:.0f} s.")
            with suppress(TimeoutError):
                self._greet(self._listener.accept()[0], folder, overrides)
        for peer in self.peers.values():
            if problem := peer.expect("ready"):
                raise ConfigError(problem)

    def check(self) -> None:
        """Raises RunFailed if another machine is gone or has failed."""
        for peer in self.peers.values():
            if sentence := peer.last("failed") or peer.lost():
                raise RunFailed(sentence)

    def end(self, outcome: str, message: str) -> None:
        """Tell the others how the run ended."""
        for peer in self.peers.values():
            peer.send(end=outcome, message=message)
        self._listener.close()

    def _greet(self, connection: socket.socket, folder: str, overrides: list[str]) -> None:
        peer = Peer(connection, "a machine")
        number = int(peer.expect("machine"))
        peer.name = f"machine {number}"
        if not 0 < number < self.count or number in self.peers:
            raise ConfigError(f"SFT_EXP_MACHINE={number} is not one of 1 to {self.count - 1}, each once: renumber.")
        if peer.expect("overrides") != overrides:
            raise ConfigError(f"machine {number} was started with other overrides: use the same on all machines.")
        self.peers[number] = peer
        peer.send(folder=folder)


def join(rendezvous: str, number: int, overrides: list[str], wait: Callable[[float], None] = time.sleep) -> Peer:
    """Another machine's end. Raises RunFailed if the first machine is not there."""
    deadline = time.monotonic() + GATHER_S
    while time.monotonic() < deadline:
        try:
            connection = socket.create_connection(address(rendezvous), timeout=5)
        except OSError:
            wait(1.0)
            continue
        peer = Peer(connection, "machine 0")
        peer.send(machine=number)
        peer.send(overrides=overrides)
        return peer
    raise RunFailed(f"hw.rendezvous={rendezvous} did not answer in {GATHER_S:.0f} s: start machine 0.")
