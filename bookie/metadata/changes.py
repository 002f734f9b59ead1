"""What a store tells those who watch its records."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias


class ChangeKind(enum.Enum):
    """What happened to a record. One that another session takes over is MODIFIED."""

    CREATED = "created"
    MODIFIED = "modified"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One changed record. A session that ends shows as deletions of its ephemeral records.

    `revision` is that of the commit; None where the backend cannot know it. An event says that
    there is something to read, not what: whoever reads may find a later state already.
    """

    kind: ChangeKind
    key: str
    revision: int | None


@dataclass(frozen=True, slots=True)
class Commit:
    """The changes of one transaction under the watched prefix, in its order; never empty.

    A backend that cannot tell where a transaction ends (ZooKeeper) may deliver it as several
    commits of one revision, one after the other.
    """

    revision: int | None
    events: tuple[WatchEvent, ...]


@dataclass(frozen=True, slots=True)
class Resync:
    """Changes may be missing from here: list again. Later commits follow as usual."""


Change: TypeAlias = Commit | Resync
