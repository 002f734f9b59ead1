"""The metadata of logs under compare-and-set: definitions, heads, chunks, cursors, transactions.

=========================================== ====================================================
key below ``logs/<namespace>/<log>``        value
=========================================== ====================================================
``definition``                              mode, partitions, id (`LogDefinition`)
``partitions/<5 digits>/head``              the newest ranges (`LogHead`); absent before the
                                            first owner
``partitions/<5 digits>/chunks/<10 digits>`` older ranges (`LogChunk`); never changes
``partitions/<5 digits>/cursors/<name>``    the progress of consumers (`LogCursor`)
``partitions/<5 digits>/holders/<cursor>/`` leased: the claims on a cursor, as a lock's queue
``transactions/<application>``              the last batch that an application published
=========================================== ====================================================

The name of a log in the namespace ``default`` may omit the namespace: ``orders`` means
``default/orders``.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import quote, unquote

from bookie.cluster import keys
from bookie.env import Clock, SystemClock
from bookie.errors import (
    BadRequestError,
    BadVersionError,
    FormatError,
    KeyExistsError,
    LogExistsError,
    NoSuchCursorError,
    NoSuchKeyError,
    NoSuchLogError,
)
from bookie.ids import DIGITS_MAX, MAX_ID
from bookie.log.catalog.log_cursor import LogCursor, decode_log_cursor, encode_log_cursor
from bookie.log.catalog.log_metadata import (
    LogChunk,
    LogDefinition,
    LogHead,
    LogMode,
    decode_log_chunk,
    decode_log_definition,
    decode_log_head,
    encode_log_chunk,
    encode_log_definition,
    encode_log_head,
)
from bookie.metadata.model import (
    NOT_EXISTS,
    TRANSACTION_OPERATIONS_MAX,
    Change,
    Check,
    Operation,
    Put,
    Record,
)
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned

T = TypeVar("T")

DEFAULT_NAMESPACE = "default"

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_PARTITION_DIGITS = 5
_CHUNK_DIGITS = 10
_APPLICATION_SIZE_MAX = 150


@dataclass(frozen=True, slots=True, order=True)
class LogName:
    """The name of a log, including the namespace of the log."""

    namespace: str
    log: str

    @classmethod
    def parse(cls, text: str) -> LogName:
        """Parse the name of a log, written as ``log`` or ``namespace/log``.

        Raises:
            BadRequestError: the name is not valid.
        """
        namespace, slash, log = text.rpartition("/") if isinstance(text, str) else ("", "", "")
        if not slash:
            namespace = DEFAULT_NAMESPACE
        if _NAME.fullmatch(log) is None or _NAME.fullmatch(namespace) is None:
            raise BadRequestError(
                f"{text!r} is not the name of a log: use LOG or NAMESPACE/LOG, each of up to 100 "
                "letters, digits, dots, hyphens and underscores, without a dot at the beginning"
            )
        return cls(namespace, log)

    def __str__(self) -> str:
        return self.log if self.namespace == DEFAULT_NAMESPACE else f"{self.namespace}/{self.log}"

    @property
    def key(self) -> str:
        return f"{keys.LOGS}/{self.namespace}/{self.log}"

    @property
    def definition_key(self) -> str:
        return f"{self.key}/definition"


@dataclass(frozen=True, slots=True, order=True)
class LogPartition:
    """One partition of a log."""

    name: LogName
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> LogPartition:
        """Parse the name of a partition, ``log#number``; without a number, the number is 0.

        Raises:
            BadRequestError: `text` is not a valid name of a partition.
        """
        name, hash_sign, number = text.partition("#")
        is_number = number.isascii() and number.isdecimal() and len(number) <= DIGITS_MAX
        if hash_sign and not is_number:
            raise BadRequestError(f"{text!r} is not the name of a partition: use LOG#NUMBER")
        return cls(LogName.parse(name), int(number or 0))

    def __str__(self) -> str:
        return f"{self.name}#{self.number}"

    @property
    def key(self) -> str:
        return f"{self.name.key}/partitions/{self.number:0{_PARTITION_DIGITS}}"

    @property
    def head_key(self) -> str:
        return f"{self.key}/head"

    def chunk_key(self, number: int) -> str:
        return f"{self.key}/chunks/{number:0{_CHUNK_DIGITS}}"

    def cursor_key(self, cursor: str) -> str:
        """Return the key of a cursor. Raises BadRequestError if the name is not valid."""
        return f"{self.key}/cursors/{checked_name(cursor, 'a cursor')}"

    def holder_key(self, cursor: str) -> str:
        """Return the key of the lock on a cursor. Raises BadRequestError for an invalid name."""
        return f"{self.key}/holders/{checked_name(cursor, 'a cursor')}"


class LogManager:
    """The metadata of all logs of a cluster."""

    def __init__(self, store: MetadataStore, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()

    # ---- logs

    async def create(
        self,
        name: LogName,
        mode: LogMode = LogMode.WRITER,
        partitions: int = 1,
        *,
        conditions: Sequence[Check] = (),
    ) -> Versioned[LogDefinition]:
        """Create a log if all `conditions` hold.

        Raises:
            LogExistsError: the name is taken.
            BadVersionError: a condition does not hold.
            BadRequestError: the number of partitions is out of range.
        """
        definition = LogDefinition(
            secrets.token_hex(8), mode, partitions, created_ms=self._clock.now_ms()
        )
        put = Put(name.definition_key, encode_log_definition(definition), NOT_EXISTS)
        try:
            stat, *_ = await self._store.transaction([put, *conditions])
        except BadVersionError as error:
            found = await self._store.get(put.key)
            if found is None and not isinstance(error, KeyExistsError):
                raise
            if found is not None and found.value == put.value:
                return Versioned(definition, found.version)
            raise LogExistsError(f"the log {name} exists") from error
        assert stat is not None, "a put has a result"
        return Versioned(definition, stat.version)

    async def read(self, name: LogName) -> Versioned[LogDefinition]:
        """Read the definition of a log.

        Raises:
            NoSuchLogError: there is no such log, or it is being deleted.
            FormatError: the record is damaged, or of a newer version.
        """
        found = await self.find(name)
        if found is None:
            raise NoSuchLogError(f"there is no log {name}; create it first")
        if found.value.is_deleted:
            raise NoSuchLogError(f"the log {name} is being deleted; delete it again to finish")
        return found

    async def require(self, name: LogName, log_id: str) -> None:
        """Check that the log exists and that its id is `log_id`.

        Raises:
            NoSuchLogError: the log was deleted, is being deleted, or has another id.
        """
        await self._store.sync()
        found = await self.find(name)
        if found is None or found.value.is_deleted:
            raise NoSuchLogError(f"the log {name} was deleted")
        if found.value.log_id != log_id:
            raise NoSuchLogError(f"the log {name} was deleted, and made anew")

    async def find(self, name: LogName) -> Versioned[LogDefinition] | None:
        """Read the definition of a log, even during its deletion; None if there is no such log."""
        record = await self._store.get(name.definition_key)
        if record is None:
            return None
        return Versioned(decoded(decode_log_definition, record), record.version)

    async def is_being_deleted(self, name: LogName, log_id: str) -> bool:
        """True if the present log of this name has the id `log_id` and is marked as deleted."""
        await self._store.sync()
        found = await self.find(name)
        return found is not None and found.value.is_deleted and found.value.log_id == log_id

    async def list_logs(self, namespace: str | None = None) -> AsyncIterator[LogName]:
        """List the logs of all namespaces or of one `namespace`, sorted within each namespace.

        The names include logs that are being deleted.

        Raises:
            BadRequestError: `namespace` is not a valid name.
        """
        if namespace is None:
            namespaces = await self._store.get_children(keys.LOGS)
        else:
            namespaces = [checked_name(namespace, "a namespace")]
        for one in namespaces:
            for log in await self._store.get_children(f"{keys.LOGS}/{one}"):
                yield LogName(one, log)

    async def mark_deleted(self, name: LogName) -> LogDefinition:
        """Mark a log as deleted, so that nobody can open it. A repeated call is no error.

        Raises:
            NoSuchLogError: there is no such log.
        """
        while True:
            found = await self.find(name)
            if found is None:
                raise NoSuchLogError(f"there is no log {name}")
            if found.value.is_deleted:
                return found.value
            marked = replace(found.value, is_deleted=True)
            try:
                await self._store.put(
                    name.definition_key, encode_log_definition(marked), version=found.version
                )
            except BadVersionError:
                continue
            return marked

    async def remove(self, name: LogName) -> None:
        """Remove all metadata of a log that is marked as deleted, after its ledgers were deleted.

        If a removal is interrupted, any process may call `remove` again. If another process has
        already removed the log, a new log of the same name is not removed.

        Raises:
            LogExistsError: the log is not marked as deleted.
        """
        found = await self.find(name)
        if found is None:
            return
        if not found.value.is_deleted:
            raise LogExistsError(f"the log {name} is not marked as deleted")
        condition = Check(name.definition_key, found.version)
        try:
            await self._announce(name, found.value, condition)
            # The definition is deleted last, so that an interrupted removal can continue.
            for part in ("partitions", "transactions"):
                await self._store.delete_recursive(f"{name.key}/{part}", condition=condition)
            await self._store.delete(condition.key, version=condition.version)
        except (BadVersionError, NoSuchKeyError):
            return  # another process removed the log

    async def _announce(self, name: LogName, definition: LogDefinition, condition: Check) -> None:
        """Write the missing heads, to wake up the readers that watch these heads."""
        for number in range(definition.partitions):
            key = LogPartition(name, number).head_key
            if not await self._store.exists(key):
                head = Put(key, encode_log_head(LogHead(definition.log_id)))
                await self._store.transaction([condition, head])

    # ---- heads and chunks

    async def read_head(self, partition: LogPartition, log_id: str) -> Versioned[LogHead]:
        """Read a partition's head; if none is stored, return an empty head of version `NOT_EXISTS`.

        Raises:
            NoSuchLogError: the head belongs to a newer log, so the log `log_id` was deleted.
        """
        record = await self._store.get(partition.head_key)
        if record is None:
            return Versioned(LogHead(log_id), NOT_EXISTS)
        found = Versioned(decoded(decode_log_head, record), record.version)
        if found.value.log_id != log_id:
            raise NoSuchLogError(f"the log {partition.name} was deleted, and made anew")
        return found

    async def revision(self, name: LogName) -> int:
        """Return the revision of the last write of a log's definition; 0 if there is no definition.

        The revision is greater than the revisions of all earlier writes, including the writes of a
        deleted log of the same name.
        """
        return await self._revision(name.definition_key)

    async def _revision(self, key: str) -> int:
        record = await self._store.get(key)
        return 0 if record is None else record.stat.revision or 0

    async def read_latest_head(self, partition: LogPartition, log_id: str) -> Versioned[LogHead]:
        """Read the head of a partition, with every change that was finished before this call.

        Raises the errors of `read_head`.
        """
        await self._store.sync()
        return await self.read_head(partition, log_id)

    async def write_head(
        self,
        partition: LogPartition,
        head: LogHead,
        version: int,
        *,
        sealed: Sequence[LogChunk] = (),
    ) -> Versioned[LogHead]:
        """Replace a head of version `version`, and write the chunks `sealed`, in one transaction.

        Raises:
            BadVersionError: the head has another version; read the head again.
            NoSuchLogError: the head would be new (`version` is `NOT_EXISTS`), but the log was
                deleted.
            MetadataUnavailableError: the store did not answer; the change may have been made.
        """
        stats = await self.commit_heads([(partition, head, version, sealed)])
        return Versioned(head, stats[0])

    async def commit_heads(
        self,
        changes: Sequence[tuple[LogPartition, LogHead, int, Sequence[LogChunk]]],
        others: Iterable[Operation] = (),
    ) -> list[int]:
        """Replace heads and perform the operations `others`, in one transaction.

        If the given version is `NOT_EXISTS`, the call creates the head. The result is the new
        version of each head.

        Raises:
            BadVersionError: a head has another version, or a condition in `others` does not hold.
            NoSuchLogError: the log of a new head was deleted.
            BadRequestError: the changes need too many operations for one transaction. Each head,
                each sealed chunk, each operation in `others`, and each log with a new head counts
                as one operation.
        """
        puts: list[Operation] = []
        rest: list[Operation] = list(others)
        named = {operation.key for operation in rest}
        conditions: dict[str, Check] = {}
        for partition, head, version, sealed in changes:
            puts.append(Put(partition.head_key, encode_log_head(head), version))
            rest += [
                Put(partition.chunk_key(chunk.number), encode_log_chunk(chunk)) for chunk in sealed
            ]
            name = partition.name
            if version == NOT_EXISTS and name.definition_key not in named:
                # A deleted log must not get a new head.
                conditions[name.key] = await self.condition(name, head.log_id)
        operations = [*puts, *rest, *conditions.values()]
        if len(operations) > TRANSACTION_OPERATIONS_MAX:
            raise BadRequestError(
                f"a change of {len(puts)} partitions takes {len(operations)} operations, and a "
                f"transaction has at most {TRANSACTION_OPERATIONS_MAX}; change fewer at once"
            )
        try:
            stats = await self._store.transaction(operations)
        except BadVersionError:
            for partition, head, version, _ in changes:
                if version == NOT_EXISTS:
                    await self.condition(partition.name, head.log_id)
            raise
        return [stat.version for stat in stats[: len(puts)] if stat is not None]

    async def condition(self, name: LogName, log_id: str) -> Check:
        """Return a condition for a transaction: the log exists and has the id `log_id`.

        Raises:
            NoSuchLogError: the log was deleted.
        """
        definition = await self.read(name)
        if definition.value.log_id != log_id:
            raise NoSuchLogError(f"the log {name} was deleted, and made anew")
        return Check(name.definition_key, definition.version)

    async def read_chunk(self, partition: LogPartition, number: int) -> LogChunk | None:
        record = await self._store.get(partition.chunk_key(number))
        return None if record is None else decoded(decode_log_chunk, record)

    async def delete_chunks(self, partition: LogPartition, numbers: Iterable[int]) -> None:
        """Delete chunks that the head no longer names. A chunk that does not exist is no error."""
        for number in numbers:
            try:
                await self._store.delete(partition.chunk_key(number))
            except NoSuchKeyError:
                continue

    async def chunk_numbers(self, partition: LogPartition) -> list[int]:
        """Return the numbers of all chunks in the store, including chunks that no head names."""
        return [int(name) for name in await self._store.get_children(f"{partition.key}/chunks")]

    @asynccontextmanager
    async def watch_head(
        self, partition: LogPartition, log_id: str
    ) -> AsyncIterator[AsyncIterator[Versioned[LogHead]]]:
        """Yield an iterator that returns the head now, and again after each change.

        Changes in quick succession may appear as one change. The iterator raises NoSuchLogError
        when the log is deleted.
        """
        async with (
            self._store.watch(partition.head_key) as changes,
            aclosing(self._follow(partition, log_id, changes)) as heads,
        ):
            yield heads

    async def _follow(
        self, partition: LogPartition, log_id: str, changes: AsyncIterator[Change]
    ) -> AsyncGenerator[Versioned[LogHead], None]:
        last = await self._read_head_of_a_log(partition, log_id)
        yield last
        async for _ in changes:
            found = await self._read_head_of_a_log(partition, log_id)
            if found.version != last.version:
                last = found
                yield found

    async def _read_head_of_a_log(self, partition: LogPartition, log_id: str) -> Versioned[LogHead]:
        """Read the head of a partition. If there is no head, check that the log was not deleted."""
        found = await self.read_head(partition, log_id)
        if found.version == NOT_EXISTS:
            await self.condition(partition.name, log_id)
        return found

    # ---- cursors

    async def read_cursor(self, partition: LogPartition, cursor: str) -> Versioned[LogCursor]:
        """Read a cursor.

        Raises:
            NoSuchCursorError: the cursor does not exist.
        """
        record = await self._store.get(partition.cursor_key(cursor))
        if record is None:
            raise NoSuchCursorError(f"there is no cursor {cursor} on {partition}")
        return Versioned(decoded(decode_log_cursor, record), record.version)

    async def cursor_revision(self, partition: LogPartition, cursor: str) -> int:
        """Return the store's revision of the last write of a cursor; 0 if there is no cursor.

        The revision is greater than the revisions of all earlier writes, including the writes of a
        deleted cursor of the same name.
        """
        return await self._revision(partition.cursor_key(cursor))

    async def write_cursor(
        self, partition: LogPartition, cursor: str, value: LogCursor, version: int
    ) -> Versioned[LogCursor]:
        """Replace the cursor whose version is `version`; `NOT_EXISTS` creates the cursor.

        Raises:
            BadVersionError: the cursor has another version, was deleted, or exists already.
            NoSuchLogError: the cursor is new, and the log was deleted.
        """
        operations: list[Operation] = [
            Put(partition.cursor_key(cursor), encode_log_cursor(value), version)
        ]
        if version == NOT_EXISTS:
            definition = await self.read(partition.name)
            operations.append(Check(partition.name.definition_key, definition.version))
        try:
            stat, *_ = await self._store.transaction(operations)
        except BadVersionError:
            if version == NOT_EXISTS:
                await self.read(partition.name)
            raise
        assert stat is not None, "a put has a result"
        return Versioned(value, stat.version)

    async def delete_cursor(self, partition: LogPartition, cursor: str) -> None:
        """Delete a cursor.

        Raises:
            NoSuchCursorError: the cursor does not exist.
        """
        try:
            await self._store.delete(partition.cursor_key(cursor))
        except NoSuchKeyError as error:
            raise NoSuchCursorError(f"there is no cursor {cursor} on {partition}") from error

    async def cursors(self, partition: LogPartition) -> Mapping[str, Versioned[LogCursor]]:
        return {
            record.name: Versioned(decoded(decode_log_cursor, record), record.version)
            async for record in self._store.scan_children(f"{partition.key}/cursors")
        }

    # ---- transactions

    async def last_batch(self, name: LogName, application: str) -> Versioned[int]:
        """Read the number of an application's last batch; if none, -1 of version `NOT_EXISTS`."""
        record = await self._store.get(_transaction_key(name, application))
        if record is None:
            return Versioned(-1, NOT_EXISTS)
        return Versioned(_batch_of(record), record.version)

    @staticmethod
    def put_batch(name: LogName, application: str, batch: int, version: int) -> Put:
        """Return the operation that replaces the number of an application's last batch.

        The operation fails if the stored number does not have the version `version`.

        Raises:
            BadRequestError: `batch` is not an integer from 0 to 2⁶³-1, or `application` is not
                valid.
        """
        if not isinstance(batch, int) or not 0 <= batch <= MAX_ID:
            raise BadRequestError(f"{batch!r} is not the number of a batch")
        return Put(_transaction_key(name, application), str(batch).encode(), version)

    async def applications(self, name: LogName) -> Mapping[str, int]:
        """Return the number of the last batch for each application that published to the log."""
        return {
            unquote(record.name): _batch_of(record)
            async for record in self._store.scan_children(f"{name.key}/transactions")
        }

    async def forget_application(self, name: LogName, application: str) -> None:
        """Delete the record of an application's last batch; its next batch then counts as first.

        An unknown application is not an error.
        """
        try:
            await self._store.delete(_transaction_key(name, application))
        except NoSuchKeyError:
            return


def checked_partition(name: LogName, number: int, count: int) -> LogPartition:
    """Return partition `number` of a log that has `count` partitions.

    Raises:
        BadRequestError: there is no such partition.
    """
    if number not in range(count):
        raise BadRequestError(f"the log {name} has {count} partitions, and no partition {number}")
    return LogPartition(name, number)


def checked_name(text: str, what: str) -> str:
    """Return `text` if it is a valid name of a cursor, a group or a namespace.

    Raises:
        BadRequestError: the name is not valid.
    """
    if not isinstance(text, str) or _NAME.fullmatch(text) is None:
        raise BadRequestError(
            f"{text!r} cannot name {what}: use up to 100 letters, digits, dots, hyphens and "
            "underscores, and begin without a dot"
        )
    return text


def _transaction_key(name: LogName, application: str) -> str:
    """Return the key of an application's last batch; the application's id is percent-encoded."""
    try:
        quoted = quote(application, safe="").replace(".", "%2E")
    except (TypeError, UnicodeEncodeError):
        quoted = ""
    if not 0 < len(quoted) <= _APPLICATION_SIZE_MAX:
        raise BadRequestError(
            f"{application!r} cannot be the id of an application: it is empty, no text, or has "
            f"more than {_APPLICATION_SIZE_MAX} characters in a key"
        )
    return f"{name.key}/transactions/{quoted}"


def _batch_of(record: Record) -> int:
    if not record.value.isdigit() or len(record.value) > DIGITS_MAX:
        raise FormatError(f"the metadata key {record.key} does not hold the number of a batch")
    return int(record.value)


def decoded(decode: Callable[[bytes], T], record: Record) -> T:
    """Decode the value of a record; add the record's key to an error that `decode` raises."""
    try:
        return decode(record.value)
    except FormatError as error:
        raise type(error)(f"the metadata key {record.key}: {error}") from error
