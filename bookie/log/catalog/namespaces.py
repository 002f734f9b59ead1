"""Namespaces, and the policies of namespaces and logs: configuration that applications share.

A log is called ``<namespace>/<name>``. The log's own policy overrides the namespace's policy, which
overrides the cluster's defaults (`bookie.log.catalog.log_policy.DEFAULTS`). Every change except
`clear_log_policy` is made by compare-and-set.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import suppress

from bookie.cluster import keys
from bookie.errors import (
    BadRequestError,
    BadVersionError,
    ClusterInUseError,
    FormatError,
    KeyExistsError,
    NoSuchKeyError,
)
from bookie.log.catalog.log_policy import DEFAULTS, LogPolicy, decode_policy, encode_policy
from bookie.log.catalog.logs import decoded
from bookie.metadata.model import NOT_EXISTS, Check, Put, Record
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


class NamespaceManager:
    """The namespaces of a cluster."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def create(self, name: str, policy: LogPolicy | None = None) -> Versioned[LogPolicy]:
        """Create a namespace.

        Raises:
            KeyExistsError: the name is taken.
            BadRequestError: the name is invalid, or the policy contradicts the defaults.
        """
        policy = policy or LogPolicy()
        policy.over(DEFAULTS)
        try:
            stat = await self._store.put(_key(name), encode_policy(policy), version=NOT_EXISTS)
        except KeyExistsError as error:
            raise KeyExistsError(f"the namespace {name} exists") from error
        return Versioned(policy, stat.version)

    async def read(self, name: str) -> Versioned[LogPolicy]:
        """Read the policy that a namespace itself sets, without inherited fields.

        Raises:
            NoSuchKeyError: there is no such namespace.
            FormatError: the record is damaged, or of a newer version.
        """
        return _policy_of(await self._record(name))

    async def _record(self, name: str) -> Record:
        record = await self._store.get(_key(name))
        if record is None:
            raise NoSuchKeyError(f"there is no namespace {name}")
        return record

    async def write(self, name: str, policy: LogPolicy, version: int) -> Versioned[LogPolicy]:
        """Replace the namespace's policy if its version is `version`.

        Raises:
            BadVersionError: the policy was changed, or the namespace was deleted.
            BadRequestError: the policy contradicts the defaults.
        """
        policy.over(DEFAULTS)
        assert version != NOT_EXISTS
        stat = await self._store.put(_key(name), encode_policy(policy), version=version)
        return Versioned(policy, stat.version)

    async def delete(self, name: str, *, cluster: MetadataStore | None = None) -> None:
        """Delete an empty namespace.

        The namespace must have no logs in the cluster whose metadata store is `cluster`; None means
        the store of the namespaces. A process that creates a log has no permission to write the
        namespace, so it cannot stop the deletion. Therefore this call looks for logs again after
        the deletion. If a log was created meanwhile, this call creates the namespace again.

        Raises:
            NoSuchKeyError: there is no such namespace.
            ClusterInUseError: the namespace has logs, or policies of logs.
            BadVersionError: the policy of the namespace or of a log was changed at the same time.
            MetadataUnavailableError, SessionLostError: the store did not answer; the namespace may
                be deleted, even if a log was created in it at the same time.
        """
        cluster = cluster or self._store
        found = await self._record(name)
        await check_without_logs(cluster, name)
        if await self._store.exists(policies := f"{keys.LOG_POLICIES}/{name}"):
            raise _not_empty(name, policies)
        await self._store.delete(_key(name), version=found.version)
        try:
            await check_without_logs(cluster, name)
        except ClusterInUseError:
            with suppress(KeyExistsError):
                await self._store.put(_key(name), found.value, version=NOT_EXISTS)
            raise

    async def condition(self, name: str) -> Check:
        """Return a condition for a transaction: a namespace exists, and its policy is unchanged.

        Raises:
            NoSuchKeyError: there is no such namespace.
        """
        return Check(_key(name), (await self._record(name)).version)

    async def names(self) -> list[str]:
        """Return the names of all namespaces, sorted."""
        return await self._store.get_children(keys.NAMESPACES)

    async def all(self) -> AsyncIterator[tuple[str, Versioned[LogPolicy]]]:
        """Yield the name of each namespace, and the policy that the namespace itself sets."""
        async for record in self._store.scan_children(keys.NAMESPACES):
            yield record.name, _policy_of(record)

    # ---- logs

    async def policy(self, namespace: str, log: str | None = None) -> LogPolicy:
        """Return the complete policy of a namespace or of one of its logs, with inherited fields.

        Raises:
            NoSuchKeyError: there is no such namespace.
            FormatError: a record is damaged, or the policies contradict each other.
        """
        found = (await self.read(namespace)).value
        own = None if log is None else await self.log_policy(namespace, log)
        try:
            decided = found.over(DEFAULTS)
            return decided if own is None else own.value.over(decided)
        except BadRequestError as error:
            owner = f"the log {namespace}/{log}" if log else f"the namespace {namespace}"
            raise FormatError(f"the policy of {owner}: {error}") from error

    async def log_policy(self, namespace: str, log: str) -> Versioned[LogPolicy] | None:
        """Read the policy that a log itself sets; None if the log has no policy of its own."""
        record = await self._store.get(_log_key(namespace, log))
        return None if record is None else _policy_of(record)

    async def set_log_policy(
        self, namespace: str, log: str, policy: LogPolicy, version: int = NOT_EXISTS
    ) -> Versioned[LogPolicy]:
        """Create the policy of one log, or replace the policy whose version is `version`.

        The same transaction rewrites the namespace's record, which changes the version of that
        record. So a concurrent deletion of the namespace fails, even if it found the namespace
        empty before this call.

        Raises:
            NoSuchKeyError: there is no such namespace.
            KeyExistsError, BadVersionError: another call has changed the policy of the log.
            BadRequestError: the policy contradicts the policy of the namespace.
        """
        while True:
            found = await self._record(namespace)
            policy.over(_policy_of(found).value.over(DEFAULTS))
            try:
                # It is not enough to check that the namespace exists: a deletion under way may have
                # looked for policies already. The namespace's new version makes this deletion fail.
                stat, _ = await self._store.transaction(
                    [
                        Put(_log_key(namespace, log), encode_policy(policy), version),
                        Put(_key(namespace), found.value, found.version),
                    ]
                )
            except BadVersionError:
                if (await self._record(namespace)).version == found.version:
                    raise
                continue  # the namespace changed, or another log in it got a policy; try again
            assert stat is not None
            return Versioned(policy, stat.version)

    async def log_policy_version(self, namespace: str, log: str) -> int | None:
        """Return the version of the policy that a log itself sets; None without such a policy."""
        record = await self._store.get(_log_key(namespace, log))
        return None if record is None else record.version

    async def clear_log_policy(self, namespace: str, log: str, version: int | None = None) -> None:
        """Remove the policy that a log itself sets, if the log has such a policy.

        Raises:
            BadVersionError: `version` is given, and the policy has another version.
        """
        with suppress(NoSuchKeyError):
            await self._store.delete(_log_key(namespace, log), version=version)


async def check_without_logs(store: MetadataStore, namespace: str) -> None:
    """Raise an error if a cluster has logs in a namespace. Logs that are being deleted count, too.

    Every log that was created before this call counts.

    `store` is the metadata store of the cluster. The namespaces may be in another store.

    Raises:
        ClusterInUseError: the namespace has logs; the message names one log.
    """
    key = f"{keys.LOGS}/{_checked(namespace)}"
    await store.sync()
    logs = await store.get_children(key)
    if logs:
        raise _not_empty(namespace, f"{key}/{logs[0]}")


def _not_empty(namespace: str, key: str) -> ClusterInUseError:
    return ClusterInUseError(f"the namespace {namespace} is not empty: there is {key}")


def _policy_of(record: Record) -> Versioned[LogPolicy]:
    return Versioned(decoded(decode_policy, record), record.version)


def _key(name: str) -> str:
    return f"{keys.NAMESPACES}/{_checked(name)}"


def _log_key(namespace: str, log: str) -> str:
    return f"{keys.LOG_POLICIES}/{_checked(namespace)}/{_checked(log)}"


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise BadRequestError(
            f"{name!r} is not a name: use up to 100 letters, digits, dots, hyphens and "
            "underscores, and begin without a dot"
        )
    return name
