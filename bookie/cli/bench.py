"""``bookie bench``: load a cluster and print throughput and latencies."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from bookie.cli.options import AckQuorum, Ensemble, Metadata, Output, OutputFormat, WriteQuorum
from bookie.cli.output import Record, print_record, print_records
from bookie.cli.progress import progress_bar
from bookie.cli.stores import on_cluster

if TYPE_CHECKING:
    from bookie.api import BookKeeper, LogPolicy, LogWriter, WriterHandle

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

PERCENTILES = (50.0, 95.0, 99.0, 99.9)

Size = Annotated[int, typer.Option("--size", min=0, max=4_000_000, help="Bytes of an entry.")]


@dataclass(frozen=True, slots=True)
class Shape:
    """The parameters of a load: sizes, concurrency and duration."""

    entry_bytes: int
    batch: int
    """The number of entries in a call: `append` for one entry, `append_many` for more entries."""
    in_flight: int
    """The number of concurrent calls, for all ledgers together."""
    seconds: float


@dataclass(slots=True)
class Measured:
    """The measured totals and latencies of a load; `latencies` are in seconds."""

    entries: int = 0
    entry_bytes: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    def record(self) -> Record:
        """Return the totals, rates and latency percentiles as a record for the output."""
        record: dict[str, int | float] = {
            "entries": self.entries,
            "bytes": self.entry_bytes,
            "seconds": round(self.seconds, 3),
            "entries_per_second": round(self.entries / self.seconds),
            "megabytes_per_second": round(self.entry_bytes / self.seconds / 1e6, 1),
        }
        ordered = sorted(self.latencies)
        for percentile in PERCENTILES:
            name = f"p{percentile:g}_ms".replace(".", "")
            record[name] = round(percentile_of(ordered, percentile) * 1e3, 3)
        record["max_ms"] = round(ordered[-1] * 1e3, 3)
        return record


def percentile_of(ordered: Sequence[float], percentile: float) -> float:
    """Return the smallest value with at least `percentile` percent of all values at or below it.

    `ordered` has the values in ascending order, and is not empty.
    """
    rank = -(-len(ordered) * percentile // 100)
    return ordered[max(0, min(len(ordered) - 1, int(rank) - 1))]


@app.command("write")
def write(
    metadata: Metadata,
    ensemble: Ensemble = 3,
    write_quorum: WriteQuorum = 3,
    ack_quorum: AckQuorum = 2,
    size: Size = 1024,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Entries of one call.")] = 1,
    in_flight: Annotated[int, typer.Option("--in-flight", min=1, help="Calls at a time.")] = 1000,
    ledgers: Annotated[int, typer.Option("--ledgers", min=1, help="Ledgers written at once.")] = 1,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Seconds of writing.")] = 5.0,
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete the ledgers.")] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Append entries for a while and print throughput and the latency of an append."""
    shape = Shape(size, batch, in_flight, seconds)

    async def load(client: BookKeeper) -> tuple[Measured, list[int]]:
        writers = [
            await client.create_ledger(
                ensemble_size=ensemble,
                write_quorum_size=write_quorum,
                ack_quorum_size=ack_quorum,
            )
            for _ in range(ledgers)
        ]
        measured = await write_load(writers, shape)
        for writer in writers:
            await writer.close()
        ids = [writer.ledger_id for writer in writers]
        for ledger_id in () if keep else ids:
            await client.delete_ledger(ledger_id)
        return measured, ids

    measured, ids = on_cluster(metadata, load)
    kept = {"ledgers": ", ".join(map(str, ids))} if keep else {}
    print_record({**kept, **measured.record()}, output)


async def write_load(writers: Sequence[WriterHandle | LogWriter], shape: Shape) -> Measured:
    """Append to `writers` with `shape.in_flight` concurrent tasks for `shape.seconds`."""
    measured = Measured()
    payload = bytes(range(256)) * (shape.entry_bytes // 256 + 1)
    payload = payload[: shape.entry_bytes]
    payloads = [payload] * shape.batch
    clock = asyncio.get_running_loop().time
    started = clock()

    async def repeat(writer: WriterHandle | LogWriter) -> None:
        while (began := clock()) < started + shape.seconds:
            if shape.batch == 1:
                await writer.append(payload)
            else:
                await writer.append_many(payloads)
            measured.latencies.append(clock() - began)
            measured.entries += shape.batch
            measured.entry_bytes += shape.batch * shape.entry_bytes
            advance(shape.batch * shape.entry_bytes)

    with progress_bar("writing", total=None) as advance:
        async with asyncio.TaskGroup() as tasks:
            for index in range(shape.in_flight):
                tasks.create_task(repeat(writers[index % len(writers)]))
    measured.seconds = clock() - started
    return measured


@app.command("read")
def read(
    metadata: Metadata,
    ledger: Annotated[
        int | None,
        typer.Option("--ledger", min=0, help="An existing ledger; a new one when absent."),
    ] = None,
    ensemble: Ensemble = 3,
    write_quorum: WriteQuorum = 3,
    ack_quorum: AckQuorum = 2,
    size: Size = 1024,
    entries: Annotated[
        int, typer.Option("--entries", min=1, help="Entries of the new ledger.")
    ] = 100_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Times to read it.")] = 3,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Read a ledger from first to last entry; print throughput and the latency of a batch."""

    async def load(client: BookKeeper) -> Measured:
        if ledger is not None:
            return await read_load(client, ledger, rounds)
        async with client.create_ledger(
            ensemble_size=ensemble, write_quorum_size=write_quorum, ack_quorum_size=ack_quorum
        ) as writer:
            for first in range(0, entries, 1024):
                await writer.append_many([bytes(size)] * min(1024, entries - first))
        measured = await read_load(client, writer.ledger_id, rounds)
        await client.delete_ledger(writer.ledger_id)
        return measured

    print_record(on_cluster(metadata, load).record(), output)


async def read_load(client: BookKeeper, ledger_id: int, rounds: int) -> Measured:
    """Read a whole ledger `rounds` times; return totals and the times between two batches."""
    measured = Measured()
    reader = await client.open_ledger(ledger_id)
    total = (reader.last_entry_id + 1) * rounds
    clock = asyncio.get_running_loop().time
    started = began = clock()
    with progress_bar("reading", total=total, unit="entries") as advance:
        for _ in range(rounds):
            async for batch in reader.read_batches(0, reader.last_entry_id):
                measured.latencies.append(clock() - began)
                measured.entries += len(batch)
                measured.entry_bytes += sum(len(entry.payload) for entry in batch)
                advance(len(batch))
                began = clock()
    measured.seconds = clock() - started
    if not measured.latencies:
        raise typer.BadParameter(f"ledger {ledger_id} is empty", param_hint="--ledger")
    return measured


@app.command("log")
def log(
    metadata: Metadata,
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, help="Partitions of the log.")
    ] = 1,
    ensemble: Ensemble = 3,
    write_quorum: WriteQuorum = 3,
    ack_quorum: AckQuorum = 2,
    size: Size = 1024,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Records of one call.")] = 1,
    in_flight: Annotated[int, typer.Option("--in-flight", min=1, help="Calls at a time.")] = 1000,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Seconds of writing.")] = 5.0,
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete the log.")] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Measure a log in three phases: write it, read it back, then append while a reader follows.

    The write phase and the tail phase last --seconds each. The write phase measures the latency of
    an append. The read phase measures the time until the next batch arrives. The tail phase
    measures the time from a record's append to its arrival at a reader that follows the log.
    """
    from bookie.log.catalog.log_policy import LogPolicy

    policy = LogPolicy(
        ensemble_size=ensemble, write_quorum_size=write_quorum, ack_quorum_size=ack_quorum
    )
    shape = Shape(size, batch, in_flight, seconds)
    records = on_cluster(
        metadata, lambda client: _bench_log(client, partitions, policy, shape, keep=keep)
    )
    print_records(records, output)


async def _bench_log(
    bk: BookKeeper, partitions: int, policy: LogPolicy, shape: Shape, *, keep: bool
) -> list[Record]:
    """Create a log, run the three phases on it, and return one record for each phase.

    The function deletes the log at the end, unless `keep` is set.
    """
    async with _new_log(bk, partitions, policy, keep=keep) as name:
        async with bk.open_log(name, create=False) as writer:
            written = await write_load([writer], shape)
        read = await _read_load(bk, name, written.entries)
        async with bk.open_log(name, create=False) as writer:
            tailed = await _tail_load(bk, writer, shape)
    phases = {"write": written, "read": read, "tail": tailed}
    named = {"log": name} if keep else {}
    return [{**named, "phase": phase, **found.record()} for phase, found in phases.items()]


@asynccontextmanager
async def _new_log(
    bk: BookKeeper, partitions: int, policy: LogPolicy, *, keep: bool
) -> AsyncGenerator[str, None]:
    name = f"bench-{secrets.token_hex(4)}"
    await bk.create_log(name, partitions=partitions, policy=policy)
    try:
        yield name
    finally:
        if not keep:
            await bk.delete_log(name)


async def _read_load(bk: BookKeeper, name: str, total: int) -> Measured:
    """Read all records of a log once; a latency is the time until the next batch arrives."""
    measured = Measured()
    clock = asyncio.get_running_loop().time
    reader = await bk.log_reader(name)
    started = began = clock()
    with progress_bar("reading", total=total, unit="records") as advance:
        async with aclosing(reader.batches()) as batches:
            async for batch in batches:
                measured.latencies.append(clock() - began)
                measured.entries += len(batch)
                measured.entry_bytes += sum(len(record.value) for record in batch)
                advance(len(batch))
                began = clock()
    measured.seconds = clock() - started
    return measured


async def _tail_load(bk: BookKeeper, writer: LogWriter, shape: Shape) -> Measured:
    """Append records one by one; measure the time from each append to the record's arrival."""
    measured = Measured()
    clock = asyncio.get_running_loop().time
    payload = bytes(shape.entry_bytes)
    reader = await bk.log_reader(writer.name, start="latest", follow=True)
    started = clock()
    with progress_bar("tailing", total=None, unit="records") as advance:
        async with aclosing(reader.records()) as records, asyncio.TaskGroup() as tasks:
            arrived = tasks.create_task(anext(records))
            await asyncio.sleep(0.1)  # wait until the reader follows the log
            while not measured.entries or clock() < started + shape.seconds:
                began = clock()
                appended = tasks.create_task(writer.append(payload, partition=writer.partitions[0]))
                await arrived
                measured.latencies.append(clock() - began)
                measured.entries += 1
                measured.entry_bytes += len(payload)
                advance(1)
                await appended
                arrived = tasks.create_task(anext(records))
            arrived.cancel()
    measured.seconds = clock() - started
    return measured
