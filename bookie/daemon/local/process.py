"""A bookie process of a local cluster, which a supervisor starts, watches, stops and kills."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bookie.addresses import join_address
from bookie.daemon.local.layout import LocalBookie
from bookie.errors import OperationTimeoutError, ShuttingDownError

READY_SECONDS_MAX = 60.0
"""The longest time of a start. A bookie replays at most a few hundred megabytes, so a start that
takes longer is stuck."""

STOP_SECONDS_MAX = 30.0
"""The longest time of a stop (drain and checkpoint); after it, the bookie is killed."""

CHILD_VARIABLES = frozenset({"BOOKIE_DEBUG", "BOOKIE_FAILPOINT"})
"""The names of the ``BOOKIE_`` variables that child processes inherit."""


@dataclass(slots=True)
class BookieProcess:
    """One bookie process of a local cluster, running or not."""

    member: LocalBookie
    directory: Path
    _process: asyncio.subprocess.Process | None = None
    _stopping: bool = False
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def id(self) -> str:
        return self.member.id

    @property
    def address(self) -> str:
        return join_address("127.0.0.1", self.member.port)

    @property
    def log_path(self) -> Path:
        """Return the path of the log file, to which all processes of the bookie append."""
        return self.directory / "bookie.log"

    @property
    def pid(self) -> int | None:
        """Return the id of the running process; None while no process runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else None

    @property
    def exit_status(self) -> int | None:
        """Return the last process's exit status, or minus the number of the signal that killed it.

        None means that the process is running, or that no process was started.
        """
        return self._process.returncode if self._process is not None else None

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    async def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the process and wait until the bookie is ready.

        Args:
            environment: more variables, which override the variables of `child_environment`.

        Raises:
            ShuttingDownError: the process ended before the bookie was ready; the message has the
                last line of the bookie's log.
            OperationTimeoutError: the bookie was not ready after `READY_SECONDS_MAX`, and was
                killed.
        """
        assert self.pid is None, f"{self.id} is running"
        self._stopping = False
        self._ended = asyncio.Event()
        with _NotifySocket(self.id) as notify:
            variables = child_environment(os.environ) | dict(environment or {})
            variables["NOTIFY_SOCKET"] = notify.name
            self._process = await self._spawn(variables)
            try:
                async with asyncio.timeout(READY_SECONDS_MAX):
                    await self._wait_ready(notify, self._process)
            except TimeoutError as error:
                await self.kill()
                raise OperationTimeoutError(
                    f"{self.id} was not ready after {READY_SECONDS_MAX:.0f} s; see {self.log_path}"
                ) from error

    async def _spawn(self, variables: Mapping[str, str]) -> asyncio.subprocess.Process:
        words = ("-m", "bookie", "serve", "--config", str(self.directory / "bookie.toml"))
        descriptor = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *words,
                *("--stop-with-parent", str(os.getpid())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env=variables,
                # With a new session, Ctrl-C reaches only the supervisor, which stops its children
                # by SIGTERM.
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        (self.directory / "bookie.pid").write_text(f"{process.pid}\n", encoding="ascii")
        return process

    async def _wait_ready(self, notify: _NotifySocket, process: asyncio.subprocess.Process) -> None:
        """Wait until the bookie reports that it is ready.

        Raises:
            ShuttingDownError: the process ended before this report.
        """
        async with asyncio.TaskGroup() as group:
            ready = group.create_task(notify.wait_ready())
            ended = group.create_task(self.wait())
            await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            ended.cancel()
        if process.returncode is not None:
            raise ShuttingDownError(
                f"{self.id} ended with status {process.returncode}: {last_line(self.log_path)}"
            )

    async def wait(self) -> int:
        """Wait until the process ends, and return its `exit_status`."""
        assert self._process is not None, f"{self.id} was never started"
        status = await self._process.wait()
        (self.directory / "bookie.pid").unlink(missing_ok=True)
        return status

    async def stop(self) -> int:
        """Send SIGTERM to the bookie, then SIGKILL after `STOP_SECONDS_MAX`; return the status."""
        return await self._end(signal.SIGTERM)

    async def kill(self) -> int:
        return await self._end(signal.SIGKILL)

    async def _end(self, number: signal.Signals) -> int:
        assert self._process is not None, f"{self.id} was never started"
        self._stopping = True
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                # Do not use `Process.send_signal`, which polls first. If the process has just
                # ended, this poll takes the exit status, and the task that waits reports 255.
                os.kill(self._process.pid, number)
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                return await self.wait()
        except TimeoutError:
            self._process.kill()
            return await self.wait()


def child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` without the variables that would change a bookie's settings.

    A bookie of a local cluster must take its settings from its file. For example,
    ``BOOKIE_METADATA`` in the user's shell often names another cluster.
    """
    return {
        name: value
        for name, value in variables.items()
        if not name.startswith("BOOKIE_") or name in CHILD_VARIABLES
    }


class _NotifySocket:
    """The socket that receives the sd_notify messages of one child process.

    The name of the socket is in Linux's abstract namespace. Such a name needs no file, and its
    length does not depend on the path of the cluster's directory.
    """

    def __init__(self, bookie_id: str) -> None:
        self.name = f"@bookie-local-{os.getpid()}-{bookie_id}-{os.urandom(6).hex()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def __enter__(self) -> _NotifySocket:
        self._socket.bind("\0" + self.name[1:])
        return self

    def __exit__(self, *_exception: object) -> None:
        self._socket.close()

    async def wait_ready(self) -> None:
        """Wait until the child reports that it is ready."""
        loop = asyncio.get_running_loop()
        while True:
            message = await loop.sock_recv(self._socket, 4096)
            if b"READY=1" in message.split(b"\n"):
                return


def describe_end(status: int, log_path: Path) -> str:
    """Describe the end of a process: its signal, or its exit status and the last log line."""
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}: {last_line(log_path)}"


def last_line(path: Path) -> str:
    """Return the last line of a bookie's log; if the line is JSON, return only the reason in it."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    last = lines[-1] if lines else "it said nothing"
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(last)["reason"])
    return last.removeprefix("bookie: ")
