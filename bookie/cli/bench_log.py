"""The loads of ``bookie bench log``: write a log, read it back, tail it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager

from bookie.api import BookKeeper, LogPolicy, LogWriter
from bookie.cli.bench import Measured, Shape, write_load
from bookie.cli.output import Record
from bookie.cli.progress import progress_bar


async def bench_log(
    bk: BookKeeper, partitions: int, policy: LogPolicy, shape: Shape, *, keep: bool
) -> list[Record]:
    """Make a log, load it, and delete it again unless `keep`; one record for each phase."""
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
    """Read all records once; the latency is that of a batch."""
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
    """Append one record after another; the latency is from its append to its arrival."""
    measured = Measured()
    clock = asyncio.get_running_loop().time
    payload = bytes(shape.entry_bytes)
    reader = await bk.log_reader(writer.name, start="latest", follow=True)
    started = clock()
    with progress_bar("tailing", total=None, unit="records") as advance:
        async with aclosing(reader.records()) as records, asyncio.TaskGroup() as tasks:
            arrived = tasks.create_task(anext(records))
            await asyncio.sleep(0.1)  # until it follows
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
