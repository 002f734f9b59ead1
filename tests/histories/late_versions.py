"""The checker of histories for ZooKeeper, which compares versions within one life of a node."""

from __future__ import annotations

import re
from dataclasses import replace

from tests.histories.checker import check
from tests.histories.history import Entry, History, Read, Write

_NODE_VERSION = 2**32 - 1
"""The part of a version that ZooKeeper itself compares."""


def check_late_versions(history: History) -> list[str]:
    """As `check`, for ZooKeeper: a version may fit a later life that its writer had not heard of.

    An offence counts if it is one both by the store's versions and by those of the nodes alone,
    which begin anew in each life.
    """
    by_node = [_with_node_versions(entry) for entry in history]
    offences = {_without_version(offence) for offence in check(by_node)}
    return [offence for offence in check(history) if _without_version(offence) in offences]


def _with_node_versions(entry: Entry) -> Entry:
    if isinstance(entry, Write) and entry.expected is not None and entry.expected >= 0:
        entry = replace(entry, expected=entry.expected & _NODE_VERSION)
    if isinstance(entry, Write | Read) and entry.version >= 0:
        entry = replace(entry, version=entry.version & _NODE_VERSION)
    return entry


def _without_version(offence: str) -> str:
    """The same offence, at the same place and time, in the words of either versions."""
    return re.sub(r"\bversion -?[0-9]+", "version", offence)
