"""Where the numbers of a scope's sequential records begin.

ZooKeeper numbers sequential nodes itself, with ten digits, by how many children their parent has
had; it can be told nothing else. For records that were copied from a store with greater numbers, a
node for the scope holds a *block*: what stands before ZooKeeper's ten digits in every number that
is given from then on. Block 3 gives 30000000000, 30000000001, …; with block 0 there is nothing
before them. Blocks only grow, so numbers do.

The node is made before the first number of the scope is given. It is read at the first sequential
put of a connection, and every such put checks that it is still as it was read, so that nobody gives
a number of an old block once there is a new one. It lies where nobody may delete it, beside the
nodes of other scopes and outside of all of them; only who may write to the scope may write to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from bookie.errors import FormatError, MetadataUnavailableError, UnauthorizedError
from bookie.metadata.zookeeper_nodes import ReadingLink, refusal
from bookie.metadata.zookeeper_outcome import HOME, LASTING_ACL
from bookie.metadata.zookeeper_thread import LostError, NoAnswerError, NodeError, NotSentError
from bookie.metadata.zookeeper_wire import (
    ACL,
    BAD_VERSION,
    NO_NODE,
    NODE_EXISTS,
    CheckVersion,
    CreateNode,
    GetData,
    NodeOperation,
    SetData,
)

NUMBERS = f"{HOME}/numbers"
"""The node below which the blocks of all scopes lie."""

BLOCK = 10**10
"""ZooKeeper's ten digits hold all of its own numbers, which are below 2^31."""

_OWN_NUMBER_MAX = 2**31 - 1
_CONFLICTS = {BAD_VERSION, NO_NODE, NODE_EXISTS}


@dataclass(frozen=True, slots=True)
class NumberBlock:
    """A block, and how to check that it is still the present one."""

    number: int
    checks: tuple[NodeOperation, ...]

    @property
    def prefix(self) -> str:
        """What stands before ZooKeeper's own digits."""
        return str(self.number) if self.number else ""

    @property
    def last(self) -> int:
        """No number of this block, or of one before, is greater."""
        return self.number * BLOCK + _OWN_NUMBER_MAX


NO_BLOCK = NumberBlock(0, ())
"""As long as no number was given."""


class NumberBlocks:
    """The block of one scope.

    Args:
        scope: its path.
        acl: whom the node of the block lets in, when it is made.
    """

    def __init__(self, link: ReadingLink, scope: str, acl: Sequence[ACL]) -> None:
        self._link = link
        self._path = f"{NUMBERS}/{quote(scope, safe='')}"
        self._acl = acl
        self._highest = 0
        self._known: NumberBlock | None = None
        self._connection = 0

    def forget(self) -> None:
        """Read it before it is used again."""
        self._known = None

    async def present(self, deadline: float) -> NumberBlock:
        """The block for numbers that are given now, as this connection has read it.

        Raises:
            FormatError: the node holds something else.
            UnauthorizedError: there is none, and we may not make it.
        """
        if self._known is None or self._connection != self._link.connection:
            connection = self._link.connection
            self._known = await self._reach(self._highest, deadline)
            self._connection = connection
        return self._known

    async def last(self, deadline: float) -> int:
        """No number that was given so far is greater. Makes nothing."""
        block, _ = await self._read(deadline)
        return block.last

    async def raise_above(self, last: int, deadline: float) -> None:
        """Begin a block above `last` unless the present one is."""
        self.forget()
        await self._reach(last // BLOCK + 1, deadline)

    async def _reach(self, number: int, deadline: float) -> NumberBlock:
        """The present block, which is `number` at least and has a node."""
        data = b"%d" % number
        while True:
            block, version = await self._read(deadline)
            if version is not None and block.number >= number:
                self._highest = block.number
                return block
            change: NodeOperation
            if version is not None:
                change = SetData(self._path, data, version)
            else:
                # What comes last tells whether those above are there.
                self._link.send(CreateNode(HOME, None))
                self._link.send(CreateNode(NUMBERS, None, LASTING_ACL))
                change = CreateNode(self._path, data, self._acl)
            try:
                await self._link.send(change).answer
            except (LostError, NotSentError):
                await asyncio.sleep(0)  # to be read what became of it
            except NoAnswerError as error:
                raise MetadataUnavailableError("the metadata store does not answer") from error
            except NodeError as error:
                if error.code == NO_NODE and version is None:
                    raise UnauthorizedError(
                        f"ZooKeeper does not let us create nodes below {NUMBERS}"
                    ) from error
                if error.code not in _CONFLICTS:
                    raise refusal(error, self._path) from error

    async def _read(self, deadline: float) -> tuple[NumberBlock, int | None]:
        """The block, and the version of its node if there is one."""
        try:
            data, stat = await self._link.read(GetData(self._path, None), deadline)
        except NodeError as error:
            if error.code == NO_NODE:
                return NO_BLOCK, None
            raise refusal(error, self._path) from error
        if data is None or not data.isdigit():
            raise FormatError(f"ZooKeeper's node {self._path} holds no number: {data!r}")
        return NumberBlock(int(data), (CheckVersion(self._path, stat.version),)), stat.version
