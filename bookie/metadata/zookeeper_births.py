"""Births of nodes, counted, so that a write with a version cannot meet another life of its record.

ZooKeeper compares a node's own version, which begins at 0 again when the node is deleted and
created. Which life a version speaks of is known from events, but events come late: others may have
deleted and created the record meanwhile, and its new life may have reached the same number.

So births are counted. There is a fixed number of *counters*, nodes outside of all scopes; each path
has one of them, by a checksum. Every transaction that creates nodes also writes their counters, and
every transaction that is right for one life of a record only demands of its counter the version
that it had when the record was seen: whatever created the path since, after whatever deletion, also
that at the end of a session, fails it. It then reads the counter, behind it the record, and is
judged again. Births of other paths with the same counter fail it as well, which costs two round
trips and nothing else.

A number that ZooKeeper gives to a sequential record comes again only in another life of the parent,
so for such names the parent's counter stands in for that of the path, which is not known before.

Counters are shared by all scopes of the servers, because scopes may overlap. Their access control
lets nobody delete them: made anew they would begin at 0, and come to numbers that somebody still
knows. Only an operator can for whom ZooKeeper checks nothing, and must not while stores are open.
Programs other than bookie do not count: what they create is told from what they deleted by events
alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from zlib import crc32

from bookie.errors import MetadataUnavailableError, UnauthorizedError
from bookie.metadata.keys import parent_of
from bookie.metadata.records import NOT_EXISTS, SEQUENCE_DIGITS_MIN, Operation, Put
from bookie.metadata.zookeeper_outcome import HOME, LASTING_ACL, Link
from bookie.metadata.zookeeper_thread import LostError, NoAnswerError, NodeError, NotSentError
from bookie.metadata.zookeeper_wire import (
    ACL,
    NO_AUTH,
    NO_NODE,
    NODE_EXISTS,
    CreateNode,
    Id,
    Multi,
    MultiRefusedError,
    Permissions,
)

COUNTERS = 1024
"""How many there are; the same for everybody who uses the servers."""

BASE = f"{HOME}/births"
"""The node below which they lie."""

_PATHS_MAX = 10_000
"""Paths whose counters are remembered: who writes a record again and again asks for them twice each
time."""

_COUNTER_ACL = [ACL(Permissions.READ | Permissions.WRITE, Id("world", "anyone"))]


def counter_of(path: str) -> str:
    """The path of the counter that is written when a node is created at `path`."""
    return f"{BASE}/{crc32(path.encode()) % COUNTERS:04}"


@lru_cache(maxsize=_PATHS_MAX)
def counters_of(path: str) -> tuple[str, ...]:
    """The counters of which one at least is written whenever a node is created at `path`."""
    digits = len(path) - len(path.rstrip("0123456789"))
    if digits < SEQUENCE_DIGITS_MIN:
        return (counter_of(path),)
    return (counter_of(path), counter_of(parent_of(path)))


def is_for_one_life(operation: Operation) -> bool:
    """Whether an operation on a record that exists is right for the life that was seen only."""
    if isinstance(operation, Put) and operation.ephemeral:
        return not operation.sequential and operation.version != NOT_EXISTS
    return operation.version not in (None, NOT_EXISTS)


class KnownBirths:
    """The versions of counters as far as answers have told.

    A version that is out of date fails a transaction and harms nothing. One that is newer than what
    is known of a record is right as well: events come in order with answers, so that the record was
    alive when the counter had it.
    """

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}

    def learn(self, counter: str, version: int) -> None:
        """A counter was read or written; answers may be learned out of order."""
        self._versions[counter] = max(version, self._versions.get(counter, -1))

    def find(self, counters: Iterable[str]) -> dict[str, int] | None:
        """Their versions, if all are known."""
        found = {}
        for counter in counters:
            if (version := self._versions.get(counter)) is None:
                return None
            found[counter] = version
        return found

    def forget(self, counter: str) -> None:
        """A transaction was refused for it: what is known is out of date, or of a former node."""
        self._versions.pop(counter, None)

    def clear(self) -> None:
        """There is another connection."""
        self._versions.clear()


async def make_counter(link: Link, counter: str) -> None:
    """Make a counter that is missing, and all others that are.

    Raises:
        UnauthorizedError: the server does not let us.
        MetadataUnavailableError: it refuses for another reason.
    """
    every = [CreateNode(f"{BASE}/{number:04}", None, _COUNTER_ACL) for number in range(COUNTERS)]
    try:
        link.send(CreateNode(HOME, None))  # others may have done it; what comes last tells
        try:
            await link.send(Multi([CreateNode(BASE, None, LASTING_ACL), *every])).answer
        except MultiRefusedError as refused:
            if refused.code == NODE_EXISTS:
                # The counters may lack one by one, and all are needed sooner or later.
                for request in every:
                    link.send(request)
            await link.send(CreateNode(counter, None, _COUNTER_ACL)).answer
    except NodeError as error:
        if error.code in (NO_AUTH, NO_NODE):
            raise UnauthorizedError(
                f"ZooKeeper does not let us create nodes below {BASE}"
            ) from error
        if error.code != NODE_EXISTS:
            raise MetadataUnavailableError(
                f"ZooKeeper refuses a counter in {BASE}: error {error.code}"
            ) from error
    except (LostError, NotSentError, NoAnswerError):
        return  # whoever needs it asks again
