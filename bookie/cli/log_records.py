"""Appends lines to a log as records, and prints the records of a log as lines."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from bookie.api import LogPositions, LogRecord, LogWriter, NewRecord, connect
from bookie.cli.entries import GROUPS_IN_FLIGHT_MAX, entries_in
from bookie.cli.log_access import partitions_of, unpublished_hint
from bookie.cli.options import OutputFormat
from bookie.cli.output import Record
from bookie.cli.progress import Advance, progress_bar
from bookie.env import Moment
from bookie.env.clock import moment_text
from bookie.errors import BadRequestError, DuplicateRecordError
from bookie.log.read.start_position import LogStart
from bookie.log.record.producers import WINDOW_SEQUENCES


@dataclass(slots=True)
class Appended:
    """The counts and the offsets of the records that one command appended to a log."""

    log: str
    records: int = 0
    bytes: int = 0
    """The number of bytes of the appended keys and values."""
    duplicates: int = 0
    """The number of lines that the log already had as records."""
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The offsets of the first and the last new record, by partition."""

    def add(self, positions: LogPositions, begins: dict[int, int]) -> int:
        """Count new records and duplicates in `positions`; return the number of new records.

        `begins` has the end offset of each partition before the first append of this command. A
        record with an offset below this end is a duplicate.
        """
        new = 0
        for partition, start, last in _spans(positions):
            first = max(start, begins[partition])
            if first > last:
                continue
            new += last - first + 1
            low, high = self.offsets.get(partition, (first, last))
            self.offsets[partition] = min(low, first), max(high, last)
        self.records += new
        self.duplicates += len(positions) - new
        return new

    def record(self) -> Record:
        return {
            "log": self.log,
            "records": self.records,
            "bytes": self.bytes,
            "duplicates": self.duplicates,
            "partitions": {
                str(number): {"first_offset": first, "last_offset": last}
                for number, (first, last) in sorted(self.offsets.items())
            },
        }

    def sentence(self) -> str:
        where = ", ".join(
            f"{self.log}#{number} {first}…{last}"
            for number, (first, last) in sorted(self.offsets.items())
        )
        known = f"; {self.duplicates} were there before" if self.duplicates else ""
        return (
            f"appended {self.records} records, {self.bytes} bytes"
            + (f", at {where}" if where else "")
            + known
        )


def _spans(positions: LogPositions) -> list[tuple[int, int, int]]:
    """Return a tuple for each run of positions: its partition, first offset and last offset."""
    return [
        (run.partition, run.first_offset, run.first_offset + run.entries - 1)
        for run in positions.runs
    ]


async def append_lines(
    metadata: str,
    log: str,
    path: Path | None,
    *,
    key_separator: bytes,
    producer: str,
    partition: int | None,
    password: bytes,
) -> Appended:
    """Become the log's owner, append the lines of a file or of standard input, and close the log.

    With `producer`, the sequence number of a record is its line number, which begins at 0. With
    `producer`, the function appends groups of lines one after another. So a log that contains a
    group of lines also contains all earlier groups.

    Raises:
        OSError: the file is unreadable; earlier lines may already be appended.
        BadRequestError: a line has no key separator; earlier lines may already be appended.
        BookieError: the errors of `BookKeeper.open_log` and `LogWriter.append_many`.
    """
    # Open the file first, so that a failure leaves the log to its owner.
    source = sys.stdin.buffer if path is None else path.open("rb", buffering=0)
    with source:
        total = os.fstat(source.fileno()).st_size if path is not None else None
        async with (
            connect(metadata) as client,
            client.open_log(log, partition=partition, password=password, create=False) as writer,
        ):
            lines = _Lines(writer, Appended(writer.name), key_separator, producer, partition)
            with progress_bar("appending", total=total) as advance:
                await lines.append(source, advance)
    return lines.done


class _Lines:
    """Appends lines to a log for one ``log append`` command, and counts the lines."""

    def __init__(
        self,
        writer: LogWriter,
        done: Appended,
        key_separator: bytes,
        producer: str,
        partition: int | None,
    ) -> None:
        self.done = done
        self._writer = writer
        self._key_separator = key_separator
        self._producer = producer
        self._partition = partition
        self._begins = {number: writer.next_offset(number) for number in writer.partitions}

    async def append(self, source: BinaryIO, advance: Advance) -> None:
        window = asyncio.Semaphore(1 if self._producer else GROUPS_IN_FLIGHT_MAX)
        most = WINDOW_SEQUENCES if self._producer else sys.maxsize
        line = 0

        async def append_group(group: list[bytes], first_line: int) -> None:
            await self._append_group(group, first_line)
            advance(sum(map(len, group)) + len(group))
            window.release()

        async with (
            asyncio.TaskGroup() as tasks,
            aclosing(entries_in(source, 0)) as groups,
        ):
            async for found in groups:
                for start in range(0, len(found), most):
                    group = found[start : start + most]
                    await window.acquire()
                    # Tasks start in the order of their creation, so records keep the file's order.
                    tasks.create_task(append_group(group, line))
                    line += len(group)

    async def _append_group(self, group: list[bytes], first_line: int) -> None:
        records = [self._record(text, first_line + at) for at, text in enumerate(group)]
        producer = (self._producer, first_line) if self._producer else None
        try:
            positions = await self._writer.append_many(
                records, producer=producer, partition=self._partition
            )
        except DuplicateRecordError:
            # The writer remembers as many sequence numbers as the largest group has. So this error
            # means that the log already has all records of the group.
            self.done.duplicates += len(group)
            return
        new = self.done.add(positions, self._begins)
        self.done.bytes += sum(
            len(one.value) + len(one.key or b"") for one in records[-new:] if new
        )

    def _record(self, text: bytes, line: int) -> NewRecord:
        if not self._key_separator:
            return NewRecord(text)
        key, separator, value = text.partition(self._key_separator)
        if not separator:
            raise BadRequestError(
                f"line {line + 1} has no {self._key_separator.decode()!r} behind a key"
            )
        return NewRecord(value, key)


async def print_log(
    metadata: str,
    log: str,
    *,
    start: LogStart = None,
    start_time: Moment | None = None,
    end: LogStart = None,
    partition: int | None,
    follow: bool,
    key_separator: bytes,
    password: bytes,
    output: OutputFormat,
) -> None:
    """Print a log's records on standard output, one per line, as values or as JSON objects."""
    out = sys.stdout.buffer
    async with aclosing(
        _batches(metadata, log, start, start_time, end, partition, follow, password)
    ) as batches:
        async for batch in batches:
            if output is OutputFormat.JSON:
                out.write(b"".join(as_json(record) for record in batch))
            elif key_separator:
                out.write(
                    b"".join(
                        (record.key or b"") + key_separator + record.value + b"\n"
                        for record in batch
                    )
                )
            else:
                out.write(b"".join(record.value + b"\n" for record in batch))
            out.flush()


async def _batches(
    metadata: str,
    log: str,
    start: LogStart,
    start_time: Moment | None,
    end: LogStart,
    partition: int | None,
    follow: bool,
    password: bytes,
) -> AsyncGenerator[Sequence[LogRecord], None]:
    assert not isinstance(end, str), "a command checks it"
    async with connect(metadata) as client:
        definition, partitions = await partitions_of(client, log, partition, start, end)
        reader = await client.log_reader(
            log,
            start=start,
            start_time=start_time,
            end=end,
            follow=follow,
            partition=partition,
            password=password,
        )
        total = None if follow or end is not None else await reader.lag()
        with progress_bar(
            "reading", total=total, unit="records", watched=False if follow else None
        ) as advance:
            async with aclosing(reader.batches()) as batches:
                async for batch in batches:
                    yield batch
                    advance(len(batch))
        if end is None:
            hint = await unpublished_hint(client, partitions, definition, password)
            if hint:
                print(f"bookie: {hint}", file=sys.stderr)


def as_json(record: LogRecord) -> bytes:
    """Return a record as a line of JSON.

    A user can give the field `position` to ``--start``, and the field `timestamp` to
    ``--start-time``.
    """
    fields: dict[str, object] = {
        "partition": record.partition,
        "offset": record.offset,
        "position": f"{record.ledger_id}:{record.entry_id}",
        "timestamp": moment_text(record.timestamp_ms),
        **({"key": None} if record.key is None else _text("key", record.key)),
        "headers": {
            name: value
            for header, content in record.headers.items()
            for name, value in _text(header, content).items()
        },
        **_text("value", record.value),
    }
    if record.producer is not None:
        fields["producer"] = {
            "id": record.producer.producer_id,
            "sequence": record.producer.sequence,
        }
    return json.dumps(fields).encode() + b"\n"


def _text(name: str, value: bytes) -> dict[str, str]:
    """Return the JSON field `name` with the text of `value`.

    If `value` is not UTF-8, return the field NAME_base64 with the value in base64.
    """
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}
