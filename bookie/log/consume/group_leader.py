"""The leader of a consumer group assigns partitions of logs to the members of the group.

Every member is a candidate for leader. The leader watches the members and the logs. If the members
change, or if the wanted logs change, the leader writes a new assignment. Each write is a
compare-and-set that succeeds only while the leader's claim exists, so a former leader cannot write.
The group consumes each log that at least one of its members wants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Self

from bookie.cluster import keys
from bookie.coordination.election import Election, LeaderState
from bookie.coordination.participant import Participant
from bookie.coordination.wait_queue import read_claim
from bookie.errors import (
    BadVersionError,
    BookieError,
    LockLostError,
    MetadataClosedError,
    NoSuchLogError,
)
from bookie.log.attempts import UNANSWERED
from bookie.log.catalog.group_metadata import GroupAssignment, MemberProfile, decode_member_profile
from bookie.log.catalog.groups import ConsumerGroup
from bookie.log.catalog.logs import DEFAULT_NAMESPACE, LogName, LogPartition, checked_name
from bookie.log.consume.assignment import assign
from bookie.log.log_client import LogClient
from bookie.metadata.mirror import Mirror
from bookie.metadata.model import Change, Record, Resync
from bookie.telemetry import event_log

_log = event_log(__name__)


class GroupLeader:
    """One member as a candidate for leader of its group.

    `run` joins the election, and assigns partitions while this member is the leader.
    """

    def __init__(
        self, client: LogClient, participant: Participant, group: ConsumerGroup, member: str
    ) -> None:
        self._client = client
        self._participant = participant
        self._group = group
        self._member = member
        self._changed = asyncio.Event()
        """Set when a new assignment may be necessary."""
        self._election = Election(
            participant, group.leader_key, owner=member, on_change=self._on_change
        )
        self._partitions: dict[LogName, int] = {}
        """The known partition counts; creating or deleting a log removes the count of this log."""

    async def run(self) -> None:
        """Act as leader whenever this member is elected, until cancellation or client close."""
        attempt = 0
        try:
            await self._election.elect()
            while True:
                await self._election.wait_for(LeaderState.LEADING)
                try:
                    await self._lead()
                    attempt = 0
                except MetadataClosedError:
                    raise
                except BookieError as error:
                    _log.warning("group_not_led", group=self._group.name, reason=str(error))
                await self._participant.pause(attempt)
                attempt += 1
        except MetadataClosedError:
            return
        finally:
            await self._election.close()

    def _on_change(self, _: object) -> None:
        self._changed.set()

    def _forget(self, names: Collection[LogName] | None) -> None:
        """Forget the partition counts of the logs `names`; None means all logs."""
        for name in list(self._partitions) if names is None else names:
            self._partitions.pop(name, None)
        self._changed.set()

    async def _lead(self) -> None:
        """Assign the partitions after each change, while this member leads."""
        store, key = self._client.store, self._group.members_key
        self._partitions.clear()
        async with (
            Mirror(store, key, (key,), read_profile, self._on_change) as members,
            DefinitionWatch(self._client, self._participant, self._forget) as logs,
        ):
            while self._election.state is LeaderState.LEADING:
                self._changed.clear()
                profiles = {
                    key.rpartition("/")[2]: profile for key, profile in members.values.items()
                }
                logs.watch(_watched(profiles.values()))
                if profiles:  # without profiles, even this member's own record is missing
                    await self._share_out(profiles)
                await self._changed.wait()

    async def _share_out(self, profiles: Mapping[str, MemberProfile]) -> None:
        """Compute the assignment, and write it if it differs from the stored assignment.

        Raises:
            MetadataUnavailableError, SessionLostError: the store did not answer; the assignment may
                have been written.
        """
        partitions = [str(one) for one in await self._wanted(profiles.values())]
        while True:
            await self._client.store.sync()
            found = await self._group.read_assignment()
            shares = assign(profiles, partitions, found.value.shares)
            if shares == found.value.shares:
                return
            assignment = GroupAssignment(
                found.value.generation + 1, self._member, self._client.clock.now_ms(), shares
            )
            try:
                condition = self._election.lock.check()
                await self._group.write_assignment(assignment, found.version, [condition])
            except LockLostError:
                return
            except BadVersionError:
                # Another member leads or will lead soon, or this member's claim was renewed.
                await self._participant.pause(0)
                continue
            _log.info(
                "group_assigned",
                group=self._group.name,
                generation=assignment.generation,
                members=len(shares),
                partitions=len(partitions),
            )
            return

    async def _wanted(self, profiles: Collection[MemberProfile]) -> list[LogPartition]:
        """Return the partitions of all existing logs that at least one member wants."""
        names: set[LogName] = set()
        for namespace, glob in {split_pattern(one.pattern) for one in profiles if one.pattern}:
            async for name in self._client.logs.list_logs(namespace):
                if fnmatchcase(name.log, glob):
                    names.add(name)
        for profile in profiles:
            names.update(map(LogName.parse, profile.logs))
        found = []
        for name in sorted(names):
            with suppress(NoSuchLogError):
                if name not in self._partitions:
                    self._partitions[name] = (await self._client.definition(name)).partitions
                found += [LogPartition(name, number) for number in range(self._partitions[name])]
        return found


class DefinitionWatch:
    """Calls `on_change` when logs are created or deleted; an async context manager."""

    def __init__(
        self,
        client: LogClient,
        participant: Participant,
        on_change: Callable[[Collection[LogName] | None], object],
    ) -> None:
        """`on_change` gets the names of the changed logs, or None if any log may have changed."""
        self._store = client.store
        self._participant = participant
        self._on_change = on_change
        self._tasks = asyncio.TaskGroup()
        self._watches: dict[str, asyncio.Task[None]] = {}

    def watch(self, prefixes: Collection[str]) -> None:
        """Watch the keys at or below each of `prefixes`, and stop all other watches."""
        for prefix in self._watches.keys() - set(prefixes):
            self._watches.pop(prefix).cancel()
        for prefix in prefixes:
            if prefix not in self._watches:
                self._watches[prefix] = self._tasks.create_task(self._follow(prefix))

    async def _follow(self, prefix: str) -> None:
        attempt = 0
        while True:
            try:
                async with self._store.watch(prefix) as changes:
                    self._on_change(None)  # logs may have changed before the watch began
                    async for change in changes:
                        names = _defined(change)
                        if names is None or names:
                            self._on_change(names)
                        attempt = 0
            except MetadataClosedError:
                return
            except UNANSWERED:
                await self._participant.pause(attempt)
                attempt += 1

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.watch(())
        # Do not pass the error of the `async with` body to the task group, which would wrap it.
        await self._tasks.__aexit__(None, None, None)


def split_pattern(pattern: str) -> tuple[str, str]:
    """Split a pattern ``namespace/glob``; return the namespace and the pattern of log names.

    A pattern without a namespace applies to the default namespace.

    Raises:
        BadRequestError: the namespace is not a valid name.
    """
    namespace, slash, glob = pattern.rpartition("/")
    return checked_name(namespace, "a namespace") if slash else DEFAULT_NAMESPACE, glob


def read_profile(record: Record) -> MemberProfile:
    """Read the profile in the record of a member.

    Raises:
        FormatError: the record contains no profile, or a profile of a newer version.
    """
    claim = read_claim(record)
    return decode_member_profile(record.value if claim is None else claim.content)


def _watched(profiles: Collection[MemberProfile]) -> set[str]:
    """Return the keys to watch: the definitions of all wanted logs are at or below these keys."""
    found: set[str] = set()
    for profile in profiles:
        found.update(LogName.parse(log).definition_key for log in profile.logs)
        if profile.pattern:
            found.add(f"{keys.LOGS}/{split_pattern(profile.pattern)[0]}")
    return found


def _defined(change: Change) -> list[LogName] | None:
    """Return the logs whose definitions changed; None if any log may have changed."""
    if isinstance(change, Resync):
        return None
    found = []
    for event in change.events:
        parts = event.key.split("/")[2:]
        # A watch may also report a parent key, such as `/logs/default`.
        if parts[2:] == ["definition"]:
            found.append(LogName(parts[0], parts[1]))
    return found
