"""Which virtual parents are to be seen, and the removal of those that are empty.

A virtual parent should exist only while something lies below it, but the last record below it may
have gone with its session. So nobody sees one that is empty: whoever lists or asks *looks* at what
may be such a parent, once in each connection. After that events tell: the deletion of a record
makes its parent a *suspect*, which is looked at again. Empty parents are removed by whoever deleted
the last record below them, and by whoever finds them.

A listing of more than `LOOKED_AT_MAX` names looks at suspects only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from bookie.env import together
from bookie.errors import BookieError
from bookie.metadata.keys import ROOT, is_under, parent_of
from bookie.metadata.zookeeper_nodes import (
    SEQUENCE_MAX,
    NodeReader,
    ReadingLink,
    may_be_virtual,
)
from bookie.metadata.zookeeper_thread import LostError, NoAnswerError, NodeError, NotSentError
from bookie.metadata.zookeeper_tree import KEPT, Scope, is_virtual, removal
from bookie.metadata.zookeeper_wire import (
    NO_NODE,
    Exists,
    GetChildren,
    GetData,
    Multi,
    MultiRefusedError,
    ZnodeStat,
)

LOOKED_AT_MAX = 1000
"""A listing of more names is taken as it is, suspects excepted."""

_LOOKS_AT_ONCE = 32
_PRUNE_ROUNDS = 10
_REMEMBERED_MAX = 10_000


class VirtualParents:
    """The virtual parents of a scope, as one store sees them."""

    def __init__(self, link: ReadingLink, scope: Scope, nodes: NodeReader) -> None:
        self._link = link
        self._scope = scope
        self._nodes = nodes
        self.kept: dict[str, None] = {}
        """Parents known to stay, so that sequential records may be created below them."""
        self._suspects: dict[str, None] = {}
        self._looked_at: dict[str, None] = {}
        """Keys whose children were looked at, and of which only suspects can be empty."""
        self._filled: dict[str, None] = {}
        """Keys below which a record was found, and is unless there are suspects."""
        self._untidy: dict[str, None] = {}
        self._is_untidy = asyncio.Event()
        self._tidying = asyncio.Lock()

    def begin(self, ephemeral: Iterable[str]) -> None:
        """A new connection, which did not see what became of these records meanwhile.

        Suspects stay: one too many costs a look.
        """
        self.kept.clear()
        self._look_anew()
        for key in ephemeral:
            self._suspect(parent_of(key))

    def note_deletion(self, key: str) -> None:
        """A node was deleted, record or not."""
        self.kept.pop(key, None)
        self._suspects.pop(key, None)
        self._suspect(parent_of(key))

    def note_kept(self, key: str, number: int) -> None:
        """A sequential record was created below `key`; `number` is ZooKeeper's own for it."""
        if number >= SEQUENCE_MAX:
            self.kept.pop(key, None)  # the next one reads, and is refused
            return
        self.kept[key] = None
        if len(self.kept) > _REMEMBERED_MAX:
            del self.kept[next(iter(self.kept))]

    # ---- what is to be seen

    async def children(self, key: str, deadline: float) -> list[str]:
        """The names one level below `key`, sorted, without virtual parents that are empty."""
        # Who is removed while the answer is on its way was a suspect before, and is none any more.
        before, connection = self._suspicious_names(key), self._link.connection
        names = await self._names(key, deadline)
        doubtful = before | self._suspicious_names(key)
        looks_at_all = key not in self._looked_at and len(names) <= LOOKED_AT_MAX
        if looks_at_all:
            doubtful.update(names)
        there: set[str] = set()
        asked = [name for name in names if name in doubtful]
        for start in range(0, len(asked), LOOKED_AT_MAX):
            there.update(
                await self._those_there(key, asked[start : start + LOOKED_AT_MAX], deadline)
            )
        if looks_at_all:
            self._remember(self._looked_at, key, connection)
        return sorted(name for name in names if name in there or name not in doubtful)

    async def is_there(self, key: str, deadline: float) -> bool:
        """Whether `key` has a record, or one lies below it."""
        stat: ZnodeStat | None = await self._link.read(
            Exists(self._scope.path(key), None), deadline
        )
        if stat is None:
            return False
        if not may_be_virtual(stat):
            return True
        if stat.numChildren > 0 and await self._is_filled(key, deadline):
            return True
        try:
            data, _ = await self._link.read(GetData(self._scope.path(key), None), deadline)
        except NodeError as error:
            if error.code == NO_NODE:
                return False
            raise
        if not is_virtual(data):
            return True
        self._suspect(key)
        self._suspect(parent_of(key))
        self.tidy(key)
        return False

    async def _is_filled(self, key: str, deadline: float) -> bool:
        """Whether a record lies below `key`, as far down as it may be."""
        is_suspect = key in self._suspects or self._suspicious_names(key)
        if key in self._filled and not is_suspect:
            return True
        connection = self._link.connection
        names = await self._names(key, deadline)
        for start in range(0, len(names), _LOOKS_AT_ONCE):
            if await self._those_there(key, names[start : start + _LOOKS_AT_ONCE], deadline, 1):
                self._remember(self._filled, key, connection)
                return True
        return False

    async def _those_there(
        self, key: str, names: Sequence[str], deadline: float, enough: int = LOOKED_AT_MAX
    ) -> list[str]:
        """Which of these children of `key` are there; not all if so many are `enough`."""
        keys = [f"{key.rstrip('/')}/{name}" for name in names]
        stats = await self._nodes.ask([Exists(self._scope.path(k), None) for k in keys], deadline)
        found, doubtful = [], []
        for name, child, stat in zip(names, keys, stats, strict=True):
            if may_be_virtual(stat):
                doubtful.append((name, child))
            elif stat is not None:
                found.append(name)
        # Who needs one finds it at the first look, as a rule, and each may lead far down.
        at_once = min(enough, _LOOKS_AT_ONCE)
        for start in range(0, len(doubtful), at_once):
            if len(found) >= enough:
                break
            some = doubtful[start : start + at_once]
            there = await self._look([child for _, child in some], deadline)
            found += [name for (name, _), is_there in zip(some, there, strict=True) if is_there]
        return found

    async def _look(self, keys: Sequence[str], deadline: float) -> list[bool]:
        return await together(self.is_there(key, deadline) for key in keys)

    # ---- removing what is empty

    def tidy(self, key: str) -> None:
        """Remove `key` soon, if it is an empty virtual parent."""
        self._untidy[key] = None
        self._is_untidy.set()

    async def keep_tidy(self) -> None:
        """Do what `tidy` asks for, until cancelled."""
        while True:
            await self._is_untidy.wait()
            self._is_untidy.clear()
            await self.tidy_up()

    async def tidy_up(self) -> None:
        """Do what `tidy` has asked for so far; nothing while there is no connection."""
        async with self._tidying:  # what another task has begun is done when this returns
            while self._untidy and self._link.is_up:
                await self.prune(self._untidy.popitem()[0])

    async def sweep(self, keys: Iterable[str], deadline: float) -> bool:
        """Remove the children of `keys`, which are in the way, if all are empty parents.

        Returns whether they were; sequential numbers below them begin anew.
        """
        for key in keys:
            for name in await self._names(key, deadline):
                child = f"{key.rstrip('/')}/{name}"
                if await self.is_there(child, deadline):
                    return False
                await self.prune_below(child)
                await self.prune(child, even_kept=True)
        return True

    async def prune(self, key: str, *, even_kept: bool = False) -> None:
        """Remove `key` if it is a virtual parent without children, and then those above it.

        Never fails: what stays is looked at again by whoever comes next.
        """
        try:
            while key != ROOT and await self._remove(key, even_kept=even_kept):
                key = parent_of(key)
        except (BookieError, NodeError, LostError, NotSentError, NoAnswerError):
            return

    async def prune_below(self, key: str) -> None:
        """Remove the virtual parents below `key` that have no records, those that stay as well."""
        try:
            names = await self._names(key, self._link.deadline())
        except NodeError:
            return
        for name in names:
            child = f"{key.rstrip('/')}/{name}"
            await self.prune_below(child)
            await self.prune(child, even_kept=True)

    async def _remove(self, key: str, *, even_kept: bool) -> bool:
        path = self._scope.path(key)
        for _ in range(_PRUNE_ROUNDS):
            root, found = await self._nodes.ask(
                [Exists(self._scope.root, None), GetData(path, None)], self._link.deadline()
            )
            if root is None or found is None:
                return found is None
            data, stat = found
            if stat.numChildren or not (data is None or (data == KEPT and even_kept)):
                return False
            operations = removal(self._scope, key, stat.version, root.version)
            try:
                await self._link.send(Multi(operations)).answer
            except MultiRefusedError:
                continue
            self.note_deletion(key)
            return True
        return False

    # ----

    async def _names(self, key: str, deadline: float) -> list[str]:
        """The names below a node, none if it is not there."""
        try:
            names: list[str] = await self._link.read(
                GetChildren(self._scope.path(key), None), deadline
            )
        except NodeError as error:
            if error.code == NO_NODE:
                return []
            raise
        return names

    def _suspicious_names(self, key: str) -> set[str]:
        """Names one level below `key` at or below which there are suspects."""
        below = len(key.rstrip("/")) + 1
        return {
            suspect[below:].partition("/")[0]
            for suspect in self._suspects
            if suspect != key and is_under(key, suspect)
        }

    def _suspect(self, key: str) -> None:
        if key == ROOT:
            return
        self._suspects[key] = None
        if len(self._suspects) > _REMEMBERED_MAX:
            del self._suspects[next(iter(self._suspects))]
            self._look_anew()

    def _look_anew(self) -> None:
        self._looked_at.clear()
        self._filled.clear()

    def _remember(self, what: dict[str, None], key: str, connection: int) -> None:
        """What was seen through that connection, whose events tell what changes."""
        if connection != self._link.connection:
            return
        what[key] = None
        if len(what) > _REMEMBERED_MAX:
            del what[next(iter(what))]
