"""The metadata of groups: a group is a set of consumers that share logs.

=========================== ====================================================================
key below ``groups/<group>`` value
=========================== ====================================================================
``members/<member>``        leased: a member and the logs that it wants (`MemberProfile`)
``leader/…``                leased: the queue of candidates for the leader
``assignment``              the partitions of each member (`GroupAssignment`), under
                            compare-and-set
=========================== ====================================================================

The progress of the group is stored in cursors: each partition has a cursor with the group's name
(see `logs`).
"""

from __future__ import annotations

from collections.abc import Iterable

from bookie.cluster import keys
from bookie.log.catalog.group_metadata import (
    GroupAssignment,
    decode_group_assignment,
    encode_group_assignment,
)
from bookie.log.catalog.logs import checked_name, decoded
from bookie.metadata.model import NOT_EXISTS, Check, Operation, Put
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned


class ConsumerGroup:
    """The metadata keys of one group, with methods that read and write its assignment.

    Raises:
        BadRequestError: `name` cannot name a group.
    """

    def __init__(self, store: MetadataStore, name: str) -> None:
        self.name = checked_name(name, "a group")
        self.key = f"{keys.GROUPS}/{name}"
        self.members_key = f"{self.key}/members"
        self.leader_key = f"{self.key}/leader"
        self.assignment_key = f"{self.key}/assignment"
        self._store = store

    async def read_assignment(self) -> Versioned[GroupAssignment]:
        """Read the assignment; if none is stored, return an empty one of version `NOT_EXISTS`.

        Raises:
            FormatError: the record is damaged, or of a newer version.
        """
        record = await self._store.get(self.assignment_key)
        if record is None:
            return Versioned(GroupAssignment(), NOT_EXISTS)
        return Versioned(decoded(decode_group_assignment, record), record.version)

    async def write_assignment(
        self, assignment: GroupAssignment, version: int, conditions: Iterable[Check] = ()
    ) -> Versioned[GroupAssignment]:
        """Replace the assignment if its version is `version` and the `conditions` hold.

        Raises:
            BadVersionError: the assignment has another version, or a condition does not hold.
            MetadataUnavailableError: the store did not answer; the change may have been made.
        """
        put = Put(self.assignment_key, encode_group_assignment(assignment), version)
        operations: list[Operation] = [put, *conditions]
        stat, *_ = await self._store.transaction(operations)
        assert stat is not None, "a put has a result"
        return Versioned(assignment, stat.version)


async def list_groups(store: MetadataStore) -> list[str]:
    """Return the sorted names of all groups that have ever had a member."""
    return await store.get_children(keys.GROUPS)
