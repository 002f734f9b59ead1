"""What an error of a device comes to, for every call that a bookie makes on every kind of file.

A failed write or sync of something committed is fail-stop. The process ends with exit code 74.
After the failure it acknowledges nothing and leaves all retries out. A full device is no failure:
new entries are refused, stored ones are served, and adds are taken again when there is room.
"""

from __future__ import annotations

import enum
import errno
from dataclasses import dataclass


class Error(enum.Enum):
    """What a call comes to. A device that is full stays so until there is room again."""

    EIO = "EIO"
    ENOSPC = "ENOSPC"
    SHORT = "half of it is written"
    SHORT_EIO = "half of it is written, and the other half is EIO"
    SHORT_ENOSPC = "half of it is written, and the other half is ENOSPC"

    @property
    def number(self) -> int:
        """The number that the system gives; 0 if there is no error."""
        if self is Error.SHORT:
            return 0
        return errno.EIO if self in {Error.EIO, Error.SHORT_EIO} else errno.ENOSPC

    @property
    def is_short(self) -> bool:
        """Whether the system writes half, and says so."""
        return self in {Error.SHORT, Error.SHORT_EIO, Error.SHORT_ENOSPC}


class Effect(enum.Enum):
    """What the bookie does about an error."""

    FAIL_STOP = "ends with exit code 74"
    READ_ONLY = "refuses new entries until there is room"
    REFUSE = "does not start and says why in one sentence"
    ONE_ERROR = "the request answers with an I/O error"
    UNHARMED = "goes on"


class Phase(enum.Enum):
    """When the device begins to fail."""

    WORK = "at work"
    FIRST_START = "at the first start"
    RESTART = "at the start after a kill"


@dataclass(frozen=True)
class Fault:
    """A row: calls of `call` on files whose path has `part` in it fail."""

    what: str
    call: str
    part: str
    phase: Phase
    on_eio: Effect
    on_enospc: Effect
    because: str
    but_not: str = "\0"
    nths: tuple[int, ...] = (1, 2, 5)
    """Which call fails, and all later ones of that kind with it if the device is full."""

    @property
    def errors(self) -> tuple[Error, ...]:
        """What the call can come to: only a write can be short."""
        return tuple(Error) if self.call == "pwritev" else (Error.EIO, Error.ENOSPC)

    def effect(self, error: Error) -> Effect:
        """What the bookie does about it; an error behind a short write is like any other."""
        if error is Error.SHORT:
            return UNHARMED
        return self.on_eio if error.number == errno.EIO else self.on_enospc


STOP, FULL, REFUSE, UNHARMED = (
    Effect.FAIL_STOP,
    Effect.READ_ONLY,
    Effect.REFUSE,
    Effect.UNHARMED,
)
_TMP = ".tmp"


def _work(
    what: str, call: str, part: str, eio: Effect, full: Effect, why: str, **more: object
) -> Fault:
    return Fault(what, call, part, Phase.WORK, eio, full, why, **more)  # type: ignore[arg-type]


def _restart(what: str, call: str, part: str, full: Effect, why: str, **more: object) -> Fault:
    return Fault(what, call, part, Phase.RESTART, REFUSE, full, why, **more)  # type: ignore[arg-type]


def _first(what: str, call: str, part: str, why: str, **more: object) -> Fault:
    return Fault(what, call, part, Phase.FIRST_START, REFUSE, REFUSE, why, **more)  # type: ignore[arg-type]


FAULTS: tuple[Fault, ...] = (
    _work(
        "journal",
        "pwritev",
        ".journal",
        STOP,
        STOP,
        "its space was reserved, so a full device is as much of a failure as any other",
        but_not=_TMP,
    ),
    _work(
        "journal",
        "fdatasync",
        ".journal",
        STOP,
        STOP,
        "after a failed sync nobody knows what the device has",
        but_not=_TMP,
    ),
    _work(
        "journal",
        "allocate",
        ".journal",
        STOP,
        FULL,
        "nothing was written yet",
        but_not=_TMP,
        nths=(1, 2),
    ),
    _work(
        "journal",
        "truncate",
        ".journal",
        STOP,
        STOP,
        "giving space back needs none",
        but_not=_TMP,
        nths=(1, 2, 3),
    ),
    _work(
        "new journal file",
        "create",
        ".journal.tmp",
        STOP,
        FULL,
        "the old file is as it was",
        nths=(1, 2, 3),
    ),
    _work(
        "new journal file",
        "pwritev",
        ".journal.tmp",
        STOP,
        FULL,
        "the file is nobody's yet",
        nths=(1, 2, 3),
    ),
    _work(
        "new journal file",
        "fdatasync",
        ".journal.tmp",
        STOP,
        FULL,
        "the file is nobody's yet",
        nths=(1, 2, 3),
    ),
    _work(
        "new journal file",
        "rename",
        ".journal",
        STOP,
        STOP,
        "a directory that cannot be written is not trusted",
        but_not=_TMP,
        nths=(1, 2, 3),
    ),
    _work(
        "directory",
        "sync_directory",
        "journal",
        STOP,
        STOP,
        "whether the name is there nobody knows",
        nths=(1, 2, 3, 4),
    ),
    _work(
        "dead file",
        "rename",
        ".journal.tmp",
        STOP,
        STOP,
        "a directory that cannot be written is not trusted",
        nths=(1, 2, 3),
    ),
    _work(
        "dead file",
        "unlink",
        ".journal.tmp",
        STOP,
        STOP,
        "the device cannot even remove a file",
        nths=(1,),
    ),
    _work(
        "index",
        "commit",
        "",
        STOP,
        FULL,
        "a full device is noticed before the first sync; after any other error what is on disk"
        " is unknown",
        nths=(1, 2, 3, 5),
    ),
    _work(
        "index data",
        "data sync",
        "",
        STOP,
        STOP,
        "what is on disk is unknown; the tree before the commit is as it was",
        nths=(1, 2, 3, 5),
    ),
    _work(
        "index meta",
        "meta write",
        "",
        STOP,
        STOP,
        "which of the two trees the next start finds is unknown",
        nths=(1, 2, 3, 5),
    ),
    _work(
        "index meta",
        "end of a commit",
        "",
        STOP,
        STOP,
        "the commit counts at the next start, though nobody was told",
        nths=(1, 2, 3, 5),
    ),
    _work(
        "entry log of a compaction",
        "create",
        ".log.tmp",
        STOP,
        UNHARMED,
        "compaction gives up and tries again later",
        nths=(1,),
    ),
    _work(
        "entry log of a compaction",
        "pwritev",
        ".log.tmp",
        STOP,
        UNHARMED,
        "compaction gives up and tries again later",
        nths=(1, 2),
    ),
    _work(
        "entry log of a compaction",
        "fdatasync",
        ".log.tmp",
        STOP,
        UNHARMED,
        "compaction gives up and tries again later",
        nths=(1,),
    ),
    _work(
        "entry log of a compaction",
        "rename",
        ".log",
        STOP,
        UNHARMED,
        "the index does not know the log yet, and the next start removes it",
        nths=(1,),
    ),
    _work(
        "entry log of a compaction",
        "sync_directory",
        "logs",
        STOP,
        UNHARMED,
        "the index does not know the log yet, and the next start removes it",
        nths=(1,),
    ),
    _work(
        "any file",
        "pread",
        ".journal",
        Effect.ONE_ERROR,
        Effect.ONE_ERROR,
        "what is stored cannot be read; nothing else depends on it",
        nths=(1, 2, 5),
    ),
    _work(
        "entry log of a compaction",
        "truncate",
        ".log.tmp",
        STOP,
        UNHARMED,
        "compaction gives up and tries again later",
        nths=(1,),
    ),
    _work(
        "any file",
        "open",
        ".journal",
        Effect.ONE_ERROR,
        Effect.ONE_ERROR,
        "what is stored cannot be read; nothing else depends on it",
        but_not=_TMP,
        nths=(1,),
    ),
    _work(
        "any file",
        "pread_cached",
        ".journal",
        Effect.ONE_ERROR,
        Effect.ONE_ERROR,
        "what is stored cannot be read; nothing else depends on it",
        nths=(1, 2, 5),
    ),
    _restart("journal", "open", ".journal", REFUSE, "it has to be replayed", nths=(1, 2)),
    _restart(
        "journal",
        "drop_cache",
        ".journal",
        REFUSE,
        "it has to be replayed from the device",
        nths=(1,),
    ),
    _restart("journal", "pread", ".journal", REFUSE, "it has to be replayed"),
    _restart(
        "index", "drop_cache", "data.mdb", REFUSE, "it has to be read from the device", nths=(1,)
    ),
    _restart(
        "entry log of a boot",
        "create",
        ".log.tmp",
        REFUSE,
        "what was acknowledged has to go somewhere, with or without the reserve",
        nths=(1,),
    ),
    _restart(
        "entry log of a boot",
        "pwritev",
        ".log.tmp",
        REFUSE,
        "what was acknowledged has to go somewhere, with or without the reserve",
        nths=(1, 2, 3),
    ),
    _restart(
        "entry log of a boot",
        "fdatasync",
        ".log.tmp",
        REFUSE,
        "what was acknowledged has to go somewhere, with or without the reserve",
        nths=(1,),
    ),
    _restart(
        "entry log of a boot", "rename", ".log", REFUSE, "the index will point into it", nths=(1,)
    ),
    _restart(
        "directory", "sync_directory", "logs", REFUSE, "the index will point into it", nths=(1,)
    ),
    _restart(
        "new journal file",
        "create",
        ".journal.tmp",
        REFUSE,
        "not even a small one for fences",
        nths=(1,),
    ),
    _restart(
        "new journal file",
        "pwritev",
        ".journal.tmp",
        REFUSE,
        "not even a small one for fences",
        nths=(1,),
    ),
    _restart(
        "new journal file",
        "fdatasync",
        ".journal.tmp",
        REFUSE,
        "not even a small one for fences",
        nths=(1,),
    ),
    _restart(
        "new journal file",
        "rename",
        ".journal",
        REFUSE,
        "a directory that cannot be written is not trusted",
        nths=(1,),
    ),
    _restart(
        "directory",
        "sync_directory",
        "journal",
        REFUSE,
        "whether the name is there nobody knows",
        nths=(1,),
    ),
    _restart(
        "index",
        "commit",
        "",
        REFUSE,
        "what was replayed has to be in the index before anything is served",
        nths=(1,),
    ),
    _restart(
        "index data",
        "data sync",
        "",
        REFUSE,
        "after a failed commit the index is read anew, by a new process",
        nths=(1,),
    ),
    _restart(
        "index meta",
        "meta write",
        "",
        REFUSE,
        "after a failed commit the index is read anew, by a new process",
        nths=(1,),
    ),
    _restart(
        "index meta",
        "end of a commit",
        "",
        REFUSE,
        "after a failed commit the index is read anew, by a new process",
        nths=(1,),
    ),
    _restart("lock", "lock", "LOCK", REFUSE, "nobody else may be at work here", nths=(1, 2)),
    _restart(
        "cookie", "open", "COOKIE", REFUSE, "whose directory it is has to be known", nths=(1, 2)
    ),
    _restart(
        "cookie", "pread", "COOKIE", REFUSE, "whose directory it is has to be known", nths=(1, 2)
    ),
    _restart(
        "directory",
        "sync_directory",
        "/index",
        REFUSE,
        "the name of the index may be gone tomorrow",
        nths=(1,),
    ),
    _restart("journal", "truncate", ".journal", REFUSE, "giving space back needs none", nths=(1,)),
    _restart(
        "dead file",
        "unlink",
        ".journal.tmp",
        REFUSE,
        "the device cannot even remove a file",
        nths=(1, 2),
    ),
    _restart(
        "word of a failure",
        "unlink",
        "FAILED",
        REFUSE,
        "the device cannot even remove a file",
        nths=(1,),
    ),
    Fault(
        "reserve",
        "create",
        "RESERVE",
        Phase.RESTART,
        REFUSE,
        UNHARMED,
        "space that is not there cannot be kept; any other error is a broken device",
        nths=(1,),
    ),
    _first("lock", "lock", "LOCK", "nobody else may be at work here", nths=(1, 2)),
    _first("cookie", "open", "COOKIE", "whose directory it is has to be known", nths=(1, 2)),
    _first("cookie", "unlink", "COOKIE", "an unstamped directory is nobody's", nths=(1, 2)),
    _first("index", "open", "data.mdb", "it has to be read from the device", nths=(1,)),
    _first("index", "drop_cache", "data.mdb", "it has to be read from the device", nths=(1,)),
    Fault(
        "reserve",
        "create",
        "RESERVE",
        Phase.FIRST_START,
        REFUSE,
        UNHARMED,
        "space that is not there cannot be kept; any other error is a broken device",
        nths=(1,),
    ),
    _first("cookie", "create", "COOKIE", "an unstamped directory is nobody's", nths=(1, 2)),
    _first("cookie", "pwritev", "COOKIE", "an unstamped directory is nobody's", nths=(1, 2)),
    _first("cookie", "fdatasync", "COOKIE", "an unstamped directory is nobody's", nths=(1, 2)),
    _first("cookie", "rename", "COOKIE", "an unstamped directory is nobody's", nths=(1, 2)),
    _first(
        "directory", "sync_directory", "journal", "the cookie may be gone tomorrow", nths=(1, 2)
    ),
    _first(
        "directory", "sync_directory", "/ledgers", "the cookie may be gone tomorrow", nths=(1, 2)
    ),
    _first("new journal file", "create", ".journal.tmp", "there is nothing to write to", nths=(1,)),
    _first(
        "new journal file", "pwritev", ".journal.tmp", "there is nothing to write to", nths=(1,)
    ),
    _first(
        "new journal file", "fdatasync", ".journal.tmp", "there is nothing to write to", nths=(1,)
    ),
    _first(
        "new journal file",
        "rename",
        ".journal",
        "a directory that cannot be written is not trusted",
        nths=(1,),
    ),
    _first("index", "commit", "", "there is no index", nths=(1, 2)),
    _first("index data", "data sync", "", "there is no index", nths=(1, 2)),
    _first("index meta", "meta write", "", "there is no index", nths=(1, 2)),
    _first("index meta", "end of a commit", "", "there is no index", nths=(1, 2)),
)
