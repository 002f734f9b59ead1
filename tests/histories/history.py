"""Acts and observations of clients of a metadata store, as they saw them, for `checker`.

Times are seconds, or any numbers that grow, of one clock for all clients; every operation spans
from its call to its return. An operation whose outcome is unknown spans to the end of time.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TypeAlias

FOREVER = math.inf
SOME_SESSION = -1
"""The number of a session that nobody knows."""


class Outcome(enum.Enum):
    """The outcome of an operation for its caller."""

    OK = "ok"
    CONFLICT = "conflict"
    """A wrong version, an existing record or a missing one: it did nothing."""
    REFUSED = "refused"
    """It did nothing, for a reason apart from the record (a lost session)."""
    UNKNOWN = "unknown"


class Verb(enum.Enum):
    """Kinds of writes."""

    CREATE = "create"
    REPLACE = "replace"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Write:
    """A conditional write of one record. Values are unique in a history."""

    client: str
    verb: Verb
    key: str
    called: float
    returned: float
    outcome: Outcome
    value: str = ""
    expected: int | None = None
    """The version that was expected, for what is no creation; None: any."""
    version: int = -1
    """The version it made, if the outcome is OK."""
    revision: int = -1
    """Likewise the revision; -1 for a deletion, which returns none."""
    session: int = 0
    """Not 0: the record is ephemeral, and lives as long as the client's session of this number.

    For a replacement: it takes an ephemeral record over. `SOME_SESSION`: the client got another
    session meanwhile, and nobody knows which of them it was.
    """


@dataclass(frozen=True, slots=True)
class Read:
    """A read of one record that was answered."""

    client: str
    key: str
    called: float
    returned: float
    value: str | None
    """None: the record was absent."""
    version: int = -1
    revision: int = -1
    is_current: bool = True
    """True if it has to show the newest state.

    Most backends promise this of all reads, and all backends of a read after a sync. Other reads
    show a state that is at least as new as those this client saw.
    """


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """The server ended a session between two moments; its ephemeral records went with it."""

    client: str
    session: int
    called: float
    returned: float


@dataclass(frozen=True, slots=True)
class Acquisition:
    """A lock that was acquired, by a call that lasted from `called` to `returned`."""

    client: str
    lock: str
    called: float
    returned: float
    token: int
    ended: float = FOREVER
    """When its holder released it, or learned that it is lost or uncertain."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that was done under a lock, guarded by its token."""

    client: str
    lock: str
    token: int
    called: float
    returned: float
    revision: int
    """The place of the effect among all; -1: it was refused."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A number that a counter gave."""

    client: str
    counter: str
    called: float
    returned: float
    number: int


class Seen(enum.Enum):
    """An event of a watch about a key."""

    CREATED = "created"
    MODIFIED = "modified"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Notice:
    """One event of a watch. Those of one commit have the same number of `batch`."""

    kind: Seen
    key: str
    revision: int
    batch: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The watch could not prove that it saw everything; its consumer listed again."""


@dataclass(frozen=True, slots=True)
class Watched:
    """All that one watch said, from when it stood to when the last was taken from it."""

    client: str
    prefix: str
    since: float
    until: float
    """Commits that were done by then had been delivered."""
    notices: tuple[Notice | Gap, ...]
    mirror: dict[str, int] = field(hash=False)
    """The belief of its consumer at the end: key → revision."""
    final: dict[str, int] = field(hash=False)
    """The state after a sync, once everybody was done: a current read of every key."""


Entry: TypeAlias = Write | Read | SessionEnd | Acquisition | Effect | Drawn | Watched
History: TypeAlias = list[Entry]
