"""The writer of a log: one `PartitionWriter` for each of its partitions."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Self

from bookie.entry.checksum import crc32c
from bookie.env import Moment, gather, moment_ms
from bookie.errors import BadRequestError, BookieError
from bookie.ledger.connection.arguments import Payload, checked_bytes
from bookie.log.catalog.log_metadata import LogMode
from bookie.log.catalog.logs import LogName, checked_partition
from bookie.log.log_client import LogClient
from bookie.log.record.log_record import LogPosition, Producer
from bookie.log.record.positions import LogPositions
from bookie.log.record.record_encoder import NewRecord, as_record, checked_records
from bookie.log.write.partition_writer import PartitionWriter
from bookie.log.write.takeover import WriterOptions, take_over

_NO_HEADERS: Mapping[str, bytes] = {}


class LogWriter:
    """Appends to a log as the log's only writer. Create a writer by `BookKeeper.open_log`.

    When an append returns, its record is durable on the ack quorum. Readers see the record a moment
    later. If the process is killed before readers see the record, the next owner of the log makes
    the record readable. Several tasks may append at once. Within a partition, the records have the
    order of the calls. If bookies fail, or a ledger is large or old, the writer continues in
    another ledger.

    The writer ends when another process opens the log: from then on, appends raise
    LogTakenOverError. A writer that is dropped without `close` causes a ResourceWarning, and owns
    the log until the client is closed.
    """

    def __init__(
        self, name: LogName, partitions: Mapping[int, PartitionWriter], count: int
    ) -> None:
        """The new writer owns `partitions`; the log has `count` partitions in all."""
        self._name = name
        self._partitions = partitions
        self._count = count
        self._numbers = sorted(partitions)
        self._turn = 0

    def __del__(self) -> None:
        writers: Mapping[int, PartitionWriter] = getattr(self, "_partitions", {})
        if any(one.is_owner for one in writers.values()):
            message = (
                f"the writer of the log {self._name} was dropped without close; it owns the log "
                "until its client is closed"
            )
            warnings.warn(message, ResourceWarning, stacklevel=1)

    def __repr__(self) -> str:
        states = ", ".join(map(repr, self._partitions.values()))
        return f"<LogWriter of {self._name}: {states}>"

    @property
    def name(self) -> str:
        return str(self._name)

    @property
    def partitions(self) -> Sequence[int]:
        """The numbers of the partitions that this writer owns."""
        return self._numbers

    @property
    def error(self) -> BookieError | None:
        """The error that ended the writer of a partition; None while no writer has ended."""
        errors = [one.error for one in self._partitions.values()]
        return next((error for error in errors if error is not None), None)

    def next_offset(self, partition: int | None = None) -> int:
        """Return the offset that the next entry of a partition would get now."""
        return self._one(partition).next_offset

    def epoch(self, partition: int | None = None) -> int:
        """Return the fencing token of this owner. Every former owner had a smaller token."""
        return self._one(partition).epoch

    async def append(
        self,
        value: Payload,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] = _NO_HEADERS,
        timestamp: Moment | None = None,
        producer: tuple[str, int] | None = None,
        partition: int | None = None,
    ) -> LogPosition:
        """Append one record; return its position when it is durable on the ack quorum.

        If the call is cancelled, the record may still be appended.

        Args:
            value: the record's bytes.
            key: the record's key. In a log of several partitions, equal keys go to the same
                partition.
            headers: names and values.
            timestamp: a time with a zone, or ms since 1970; now if None.
            producer: a producer's id, and this record's number. The number of a new record must be
                greater than the numbers of the producer's earlier records in the partition. If the
                record was appended before, the position of the first append is returned. In a log
                of several partitions, `producer` needs `key` or `partition`.
            partition: append to this partition. None chooses the key's partition or, without a
                key, the partitions in turn.

        Raises:
            BadRequestError: an argument is wrong; nothing was appended.
            LogFullError: the partition has reached the quota; nothing was appended.
            DuplicateRecordError: the producer's number is too old; nothing was appended.
            ClockError: this machine's clock was set, and is compared with bookies' clocks now;
                nothing was appended. Append again.
            LogTakenOverError: another process owns the partition. After LogTakenOverError and each
                error below, the outcome of the append is unknown.
            LogClosedError, ClientClosedError: the writer or the client was closed.
            UnavailableError, MetadataError: bookies or the metadata store did not answer for longer
                than `patience_seconds`; the writer has ended.
        """
        value = checked_bytes(value, "a record's value")
        record = NewRecord(value, key, headers, None if timestamp is None else moment_ms(timestamp))
        if key is not None and not isinstance(key, bytes):
            raise BadRequestError(f"a key must be bytes, not {type(key).__name__}")
        if producer is not None and key is None and partition is None and self._count > 1:
            raise BadRequestError("a numbered record needs a key or a partition")
        writer = self._choose(key, partition)
        return (await writer.append([record], _producer(producer)))[0]

    async def append_many(
        self,
        records: Iterable[Payload | NewRecord],
        *,
        producer: tuple[str, int] | None = None,
        partition: int | None = None,
    ) -> LogPositions:
        """Append many records in order; return their positions when all are durable.

        The call waits once for all records, so it is much faster than many calls of `append`.
        Cancellations and errors have the same effect as in `append`. After an error, the first
        records of each partition may be durable.

        Args:
            records: for each record, its value or a `NewRecord`.
            producer: the producer's id, and the first record's number. The other records have the
                numbers that follow. In a log of several partitions, `producer` needs `partition`.
            partition: append all records to this partition. None chooses the key's partition for
                each record with a key, and one partition for all other records.
        """
        found = checked_records(records)
        if partition is not None or self._count == 1:
            return await self._one(partition).append(found, _producer(producer))
        if producer is not None:
            raise BadRequestError("several numbered records need one partition; name it")
        return await self._append_by_key(found)

    async def _append_by_key(self, records: Sequence[Payload | NewRecord]) -> LogPositions:
        turn = self._choose(None, None)
        shares: dict[PartitionWriter, list[int]] = {}
        whole = [as_record(one) for one in records]
        for index, record in enumerate(whole):
            writer = turn if record.key is None else self._choose(record.key, None)
            shares.setdefault(writer, []).append(index)
        writers = list(shares)
        with ExitStack() as places:
            # Each append begins in a task, a moment later, but its place in the order is taken now.
            turns = [places.enter_context(writer.turn()) for writer in writers]
            outcomes = await gather(
                writer.append([whole[index] for index in shares[writer]], turn=turn)
                for writer, turn in zip(writers, turns, strict=True)
            )
        positions: dict[int, LogPosition] = {}
        for writer, outcome in zip(writers, outcomes, strict=True):
            positions.update(zip(shares[writer], outcome, strict=True))
        return LogPositions.of(positions[index] for index in range(len(whole)))

    async def roll(self) -> None:
        """Continue in a new ledger in each partition whose ledger is not empty.

        Appends are accepted meanwhile.

        Raises:
            NotEnoughBookiesError, MetadataError: no ledger could be added in a partition; the
                partition's writer continues in the old ledger.
            LogTakenOverError, LogClosedError: the writer has ended.
        """
        await gather(one.roll() for one in self._partitions.values())

    async def close(self) -> None:
        """Wait for pending appends, close the ledgers, and release the log.

        A second call is no error. Partitions whose writer has already ended are skipped.

        Raises:
            LogTakenOverError: another process took a partition during this call.
            UnavailableError, MetadataError: some ledgers may still be open; the next owner closes
                open ledgers.
        """
        await gather(one.close() for one in self._partitions.values())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, exc: BaseException | None, __: object) -> None:
        try:
            await self.close()
        except BookieError:
            # If the `async with` block failed, its error is more useful than the writer's; a writer
            # also logs its own end.
            if exc is None:
                raise

    # -- partitions --------------------------------------------------------------------------------

    def _one(self, partition: int | None) -> PartitionWriter:
        if partition is None and len(self._numbers) == 1:
            return self._partitions[self._numbers[0]]
        if partition is None:
            raise BadRequestError(
                f"the log {self._name} is open for partitions {self._numbers}; name one of them"
            )
        found = self._partitions.get(partition) if type(partition) is int else None
        if found is None:
            raise BadRequestError(
                f"the log {self._name} is open for partitions {self._numbers}, and {partition!r} "
                "is none of them"
            )
        return found

    def _choose(self, key: bytes | None, partition: int | None) -> PartitionWriter:
        if partition is not None or self._count == 1:
            return self._one(partition)
        if key is not None:
            try:
                return self._one(partition_of(key, self._count))
            except TypeError:
                raise BadRequestError(f"a key must be bytes, not {type(key).__name__}") from None
        self._turn += 1
        return self._partitions[self._numbers[self._turn % len(self._numbers)]]


def partition_of(key: bytes, partitions: int) -> int:
    """Return a key's partition: the key's CRC32C, modulo the number of partitions."""
    return crc32c(key) % partitions


async def open_writer(
    client: LogClient,
    name: LogName,
    *,
    partition: int | None,
    options: WriterOptions,
    create: bool,
) -> LogWriter:
    """Become the owner of a log, or of one partition of it, as `BookKeeper.open_log` describes."""
    definition = await client.definition(name, create=create)
    if definition.mode is not LogMode.WRITER:
        raise BadRequestError(f"the log {name} is transactional; publish to it instead")
    count = definition.partitions
    numbers = range(count) if partition is None else [partition]
    partitions = [checked_partition(name, number, count) for number in numbers]
    policy = await client.policy(name)
    writers: dict[int, PartitionWriter] = {}
    try:
        for one in partitions:
            owned = await take_over(client, one, definition, options)
            writers[one.number] = PartitionWriter(client, one, owned, policy, options)
    except BaseException:
        for writer in writers.values():
            writer.abandon()
        raise
    return LogWriter(name, writers, count)


def _producer(given: tuple[str, int] | None) -> Producer | None:
    if given is None:
        return None
    match given:
        case (str(producer_id), int(sequence)) if sequence >= 0 and sequence is not True:
            return Producer(producer_id, sequence)
    raise BadRequestError("a producer is an id and a number from 0 on, such as ('shop-1', 7)")
