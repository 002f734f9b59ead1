"""A terminal with a shell in it, and the commands of a guide typed into it."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PROMPT = "\u00bbready\u00ab"
SECONDS_MAX = 600.0
"""A fresh environment takes a minute to install. The longest wait of a guide is 20 s."""

_ERASED = re.compile(r"[^\n]*\n?\r?\x1b\[1A\x1b\[2K|[^\n]*\r\x1b\[2K")
"""A line that a progress bar takes back, or paints again."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Typed(NamedTuple):
    """A command of a guide, and the lines that it prints there."""

    command: str
    lines: list[str]

    @property
    def is_interrupted(self) -> bool:
        """True if the guide says that the reader presses Ctrl-C."""
        return "press Ctrl-C" in self.command


def typed(text: str) -> list[Typed]:
    """The commands of a text's examples. A command is continued below where it ends with ``\\``."""
    found: list[Typed] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            command, printed = part
            found.append(Typed(command, printed.splitlines()))
    return found


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def missing_line(lines: list[str], shown: str) -> str | None:
    """The first of the guide's lines that was not printed after those before it."""
    printed = iter(line.rstrip() for line in shown.splitlines())
    return next((line for line in lines if line.rstrip() not in printed), None)


class Terminal:
    """An interactive bash, with job control, as a reader of a guide has it."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        """Start the shell. Made by `open_terminal`, which ends it."""
        self._master, slave = pty.openpty()
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._printed = ""
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            cwd=directory,
            env={**environment, "PS1": PROMPT, "PS2": "", "TERM": "xterm", "COLUMNS": "160"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509  (one system call, and no lock is taken)
        )
        attributes = termios.tcgetattr(slave)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        os.close(slave)
        self.read_until(PROMPT)
        self.type("bind 'set enable-bracketed-paste off' 2>/dev/null; set +o history; stty -echo")

    def type(self, command: str) -> str:
        """Type a command; what is printed until the shell is ready again."""
        self.send(f"{command}\n")
        return self.read_until(PROMPT).removesuffix(PROMPT)

    def send(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def read_until(self, wanted: str) -> str:
        """All that is printed until `wanted` is, without what moves a cursor."""
        end = time.monotonic() + SECONDS_MAX
        while wanted not in self._printed:
            left = end - time.monotonic()
            assert left > 0, f"no {wanted!r} in {SECONDS_MAX:.0f} s, only:\n{self._printed}"
            if select.select([self._master], [], [], left)[0]:
                self._printed += self._decode(os.read(self._master, 65536)).replace("\r\n", "\n")
        printed, wanted, self._printed = self._printed.partition(wanted)
        return _CONTROL.sub("", _ERASED.sub("", printed + wanted))

    def follow(self, entry: Typed) -> str:
        """Type a command of a guide; all that it prints, which holds the guide's lines in order."""
        if entry.is_interrupted:
            self.send(f"{entry.command}\n")
            shown = "".join(self.read_until(f"{line}\n") for line in entry.lines)
            self.send("\x03")
            shown += self.read_until(PROMPT)
        else:
            shown = self.type(entry.command)
        missing = missing_line(entry.lines, shown)
        assert missing is None, f"$ {entry.command}\nlacks the line {missing!r}:\n{shown}"
        return shown

    def close(self) -> None:
        """Kill the shell and each job of it: they are process groups of one session."""
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid:
                    os.kill(int(path.parent.name), signal.SIGKILL)
        self.process.wait()
        os.close(self._master)


@contextlib.contextmanager
def open_terminal(directory: Path, environment: Mapping[str, str]) -> Iterator[Terminal]:
    """A terminal; everything that was started in it ends with it."""
    terminal = Terminal(directory, environment)
    try:
        yield terminal
    finally:
        terminal.close()
