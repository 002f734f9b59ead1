"""Where the numbers of a scope's sequential records begin.

ZooKeeper numbers sequential nodes itself, with ten digits, by how many children their parent has
had; it can be told nothing else. For records that were copied from a store with greater numbers, a
node beside the scope holds a *block*: what stands before ZooKeeper's ten digits in every number
that is given from then on. Block 3 gives 30000000000, 30000000001, …; without the node, or with
block 0, there is nothing before them. Blocks only grow, so numbers do.

The node is read at the first sequential put of a connection, and every such put checks that it is
still as it was read. That it is still absent cannot be checked: whoever has seen that numbers on as
before, until its next connection or until one of its writes is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from bookie.errors import FormatError, MetadataUnavailableError
from bookie.metadata.zookeeper_nodes import ReadingLink, refusal
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
"""As long as nothing was copied."""


class NumberBlocks:
    """The block of the scope whose numbers stand in the node `path`."""

    def __init__(self, link: ReadingLink, path: str, acl: Sequence[ACL]) -> None:
        self._link = link
        self._path = path
        self._acl = acl
        self._known: NumberBlock | None = None
        self._connection = 0

    def forget(self) -> None:
        """Read it before it is used again."""
        self._known = None

    async def present(self, deadline: float) -> NumberBlock:
        """The block for numbers that are given now, as this connection has read it.

        Raises:
            FormatError: the node holds something else.
        """
        if self._known is None or self._connection != self._link.connection:
            connection = self._link.connection
            self._known, _ = await self._read(deadline)
            self._connection = connection
        return self._known

    async def raise_above(self, last: int, deadline: float) -> None:
        """Begin a block above `last` unless the present one is."""
        number = last // BLOCK + 1
        data = b"%d" % number
        while True:
            self.forget()
            block, version = await self._read(deadline)
            if block.number >= number:
                return
            change: NodeOperation = CreateNode(self._path, data, self._acl)
            if version is not None:
                change = SetData(self._path, data, version)
            try:
                await self._link.send(change).answer
            except (LostError, NotSentError):
                await asyncio.sleep(0)  # to be read what became of it
            except NoAnswerError as error:
                raise MetadataUnavailableError("the metadata store does not answer") from error
            except NodeError as error:
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
