"""Translate ZooKeeper's events about nodes into the store's events about records.

Four internal operations cause events about nodes that must not become events about records, or not
the same events. They are: making or removing a parent, turning a parent into a record, checking
that a record is absent, and taking over a record. The writer marks these operations: in the
transaction, it writes the scope's own node before and after them. Events between these two writes
are *inside brackets*.

=============== ==================================== =============================================
event           outside of brackets                  inside brackets
=============== ==================================== =============================================
created         CREATED                              after a deletion in the same brackets: MODIFIED
                                                     (a take-over); otherwise no event (a parent)
changed         MODIFIED; after a change inside      no event (a parent that will get a record)
                brackets: CREATED
deleted         DELETED                              no event
=============== ==================================== =============================================

All events of one transaction have the same zxid. Events with the same zxid that arrive together
become one commit. ZooKeeper does not mark the end of a transaction. So if its events arrive in two
parts, they become two commits. Servers before 3.9 send events without a zxid. With servers before
3.9, the store cannot recognise brackets, so parents look like records that are created and deleted.
"""

from __future__ import annotations

from bookie.metadata.model import ROOT, ChangeKind, WatchEvent
from bookie.metadata.zookeeper.kazoo_parts import NodeEvent
from bookie.metadata.zookeeper.tree import Scope

CREATED = 1
DELETED = 2
CHANGED = 3
"""ZooKeeper's numbers for the kinds of events."""


class ChangeReader:
    """Translates the events of one connection, in order."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._zxid = 0
        self._is_inside = False
        self._deleted_inside: set[str] = set()
        self._converting: set[str] = set()

    def begin(self) -> None:
        """Forget the events of the former connection, because a new connection begins."""
        self._enter(0)

    def read(self, event: NodeEvent) -> WatchEvent | None:
        """Return the change of a record that the event shows; None if no record changed."""
        if event.zxid != self._zxid or event.zxid <= 0:
            self._enter(event.zxid)
        key = self._scope.key(event.path)
        if key == ROOT:
            self._is_inside = not self._is_inside
            self._deleted_inside = set()
            return None
        kind = self._inside(event.kind, key) if self._is_inside else self._outside(event.kind, key)
        if kind is None:
            return None
        return WatchEvent(kind, key, event.zxid if event.zxid > 0 else None)

    def _enter(self, zxid: int) -> None:
        self._zxid = zxid
        self._is_inside = False
        if self._deleted_inside:
            self._deleted_inside = set()
        if self._converting:
            self._converting = set()

    def _outside(self, kind: int, key: str) -> ChangeKind | None:
        if kind == CREATED or (kind == CHANGED and key in self._converting):
            return ChangeKind.CREATED
        if kind == CHANGED:
            return ChangeKind.MODIFIED
        return ChangeKind.DELETED if kind == DELETED else None

    def _inside(self, kind: int, key: str) -> ChangeKind | None:
        if kind == CREATED and key in self._deleted_inside:
            return ChangeKind.MODIFIED
        if kind == DELETED:
            self._deleted_inside.add(key)
        elif kind == CHANGED:
            self._converting.add(key)
        return None
