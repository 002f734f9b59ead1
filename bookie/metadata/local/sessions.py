"""Sessions of the processes that share a local store: begin, heartbeat, end, notifications.

A session is a row in the store and a file in ``sessions/``. While the process that owns the session
lives, it holds a lock (flock) on the file, and writes a deadline into the file. Only the row
decides: a session without a row has ended, and every commit first checks that the row of its
session exists. A peer (another process) ends a session in two cases:

1. The owner is dead: the machine was started again (boot id), or the session's file is missing, or
   the file is not locked.
2. The owner hangs: the deadline has passed, and has not changed for a third of the timeout. During
   this third, the peer itself must not have been paused. So a pause of the whole machine ends no
   living session.

Deadlines use CLOCK_BOOTTIME, a clock that all processes share and nobody can set. A process that
was forked from an owner also holds the owner's lock. So if the owner dies before it, only case 2
can end the session.

A notification is a datagram to a socket in the abstract namespace; each session has one socket. The
datagram only says that there are new commits.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from bookie.env import SystemClock, boot_time_seconds
from bookie.errors import MetadataUnavailableError
from bookie.metadata.local.tree import SessionRow, TreeWriter

_DEADLINE = struct.Struct(">Q")
_GRACE_FRACTION = 3
"""After a deadline has passed, a peer still waits for the session timeout / this number."""


class SessionFile:
    """The file of our own session, locked until `close` or the end of the process."""

    def __init__(self, directory: Path, session: bytes, timeout_seconds: float) -> None:
        self._path = _path(directory, session)
        self._timeout_seconds = timeout_seconds
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.beat()
        except BaseException:
            self.close()
            raise

    def beat(self) -> None:
        """Write a new deadline into the file: one session timeout from now.

        Raises:
            MetadataUnavailableError: the file cannot be written.
        """
        self.beaten_at = boot_time_seconds()
        deadline = self.beaten_at + self._timeout_seconds
        try:
            os.pwrite(self._fd, _DEADLINE.pack(int(deadline * 1e9)), 0)
        except OSError as error:
            raise MetadataUnavailableError(
                f"no heartbeat can be written to {self._path}: {error.strerror}"
            ) from error

    def close(self) -> None:
        """Remove the file and free its lock."""
        _remove(self._path)
        os.close(self._fd)


def begin_session(
    tree: TreeWriter, directory: Path, session: bytes, timeout_seconds: float
) -> SessionFile:
    """Create the file and the row of a session, inside a write transaction.

    Without the write transaction, another process could delete the new file (in `_sweep`) before
    its row and its lock exist.
    """
    try:
        _sweep(directory, tree.sessions())
        file = SessionFile(directory, session, timeout_seconds)
    except OSError as error:
        raise MetadataUnavailableError(
            f"no session file can be created in {directory}: {error.strerror}"
        ) from error
    tree.begin_session(session, SessionRow(timeout_seconds, SystemClock().boot_id(), os.getpid()))
    return file


def _sweep(directory: Path, sessions: Iterable[bytes]) -> None:
    """Remove the session files that crashed processes left behind."""
    known = {_path(directory, session).name for session in sessions}
    for path in directory.iterdir():
        if path.name not in known and path.suffix == ".session" and _is_unlocked(path):
            _remove(path)


class SessionReaper:
    """Finds dead sessions of other processes; each open store calls its reaper at intervals."""

    def __init__(self, directory: Path, interval_seconds: float) -> None:
        self._directory = directory
        self._interval_seconds = interval_seconds
        self._boot_id = SystemClock().boot_id()
        self._inspected_at = time.monotonic()
        self._overdue: dict[bytes, tuple[int, float]] = {}
        """Session → its passed deadline, and the time when this reaper first saw it passed."""

    def inspect(self, sessions: dict[bytes, SessionRow], own: bytes) -> list[bytes]:
        """Return the sessions that must be ended. The call takes some microseconds per session."""
        now = time.monotonic()
        late_seconds = now - self._inspected_at - self._interval_seconds
        self._inspected_at = now
        dead = []
        overdue: dict[bytes, tuple[int, float]] = {}
        for session, row in sessions.items():
            if session == own:
                continue
            grace_seconds = row.timeout_seconds / _GRACE_FRACTION
            if late_seconds > grace_seconds:
                # This process was paused, so perhaps the owner was paused, too. Give the owner the
                # whole time of grace once more.
                self._overdue.pop(session, None)
            if self.is_dead(session, row):
                dead.append(session)
                continue
            deadline = self._passed_deadline(session)
            if deadline is None:
                continue
            before = self._overdue.get(session)
            since = before[1] if before is not None and before[0] == deadline else now
            if now - since >= grace_seconds:
                dead.append(session)
            overdue[session] = (deadline, since)
        self._overdue = overdue
        return dead

    def is_dead(self, session: bytes, row: SessionRow) -> bool:
        """True if the owner of `session` is certainly dead: case 1 in this module's docstring."""
        path = _path(self._directory, session)
        return row.boot_id != self._boot_id or not path.exists() or _is_unlocked(path)

    def reap(self, tree: TreeWriter, dead: Iterable[bytes]) -> None:
        """Inside a write transaction, check all `dead` sessions again; end those still dead."""
        sessions = tree.sessions()
        for session in dead:
            row = sessions.get(session)
            if row is None:
                continue
            if self.is_dead(session, row) or self._passed_deadline(session) is not None:
                tree.end_session(session)
                _remove(_path(self._directory, session))

    def _passed_deadline(self, session: bytes) -> int | None:
        """Return a session's deadline in ns if it has passed, 0 if it is damaged, else None."""
        try:
            data = _path(self._directory, session).read_bytes()
        except OSError:
            return None
        if len(data) != _DEADLINE.size:
            return 0
        (deadline,) = _DEADLINE.unpack(data)
        return int(deadline) if deadline < boot_time_seconds() * 1e9 else None


def _path(directory: Path, session: bytes) -> Path:
    return directory / f"{session.hex()}.session"


def _remove(path: Path) -> None:
    # A file that cannot be removed does no harm, because a session without a row has ended.
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _is_unlocked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        # Try a shared lock: if two processes inspected the file with exclusive locks at the same
        # time, each would take the other for the owner.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


class CommitSubscription:
    """The socket on which a session is notified of commits."""

    def __init__(self, session: bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.bind(_address(session))
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def drain(self) -> None:
        try:
            while True:
                self._socket.recv(16)
        except BlockingIOError:
            return

    def close(self) -> None:
        self._socket.close()


class CommitNotifier:
    """Notifies sessions of commits; used by the thread that commits."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def notify(self, sessions: Iterable[bytes]) -> None:
        """Send a datagram to the owner of each session; if it is lost, the owner still polls."""
        for session in sessions:
            try:
                self._socket.sendto(b"\0", _address(session))
            except OSError:
                # If the socket is full, earlier notifications already wait for the owner. If there
                # is no such socket, the owner has ended, or is in another network namespace.
                continue

    def close(self) -> None:
        self._socket.close()


def _address(session: bytes) -> bytes:
    return b"\0bookie-metadata-" + session.hex().encode()
