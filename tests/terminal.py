"""A pseudo-terminal around one command, driven as a person drives it."""

import fcntl
import os
import select
import subprocess
import termios
import time
from pathlib import Path
from types import TracebackType

CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """The command's screen as text; keys such as `CTRL_C` reach it as the kernel passes them on."""

    def __init__(self, argv: list[str], cwd: Path) -> None:
        self._master, slave = os.openpty()
        self._process = subprocess.Popen(
            argv, cwd=cwd, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, close_fds=True,
            env={**os.environ, "TERM": "xterm"}, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self.screen = ""
        self._seen = 0

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def wait_for(self, text: str, seconds: float = 120.0) -> str:
        """What appeared up to `text`, which must be new."""
        until = time.monotonic() + seconds
        while (at := self.screen.find(text, self._seen)) < 0:
            assert self._read(until), f"no {text!r} in:\n{self.screen}"
        found, self._seen = self.screen[self._seen : at], at + len(text)
        return found

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def end(self, seconds: float = 60.0) -> int:
        """Exit code, once everything is read."""
        until = time.monotonic() + seconds
        while self._read(until):
            pass
        return self._process.wait(seconds)

    def _read(self, until: float) -> bool:
        if not select.select([self._master], [], [], max(0.0, until - time.monotonic()))[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the last process has closed the terminal
            return False
        self.screen += data.decode(errors="replace")
        return bool(data)
