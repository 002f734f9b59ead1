"""The public API: connect to a cluster, use its ledgers and logs, coordinate a service.

::

    async with connect("local:///var/lib/bookie/metadata") as bk:
        async with bk.create_ledger() as writer:
            entry_id = await writer.append(b"...")
        reader = await bk.open_ledger(writer.ledger_id)
        async for entry in reader.read():
            print(entry.entry_id, entry.payload)

A service can keep its locks, elections, groups, queues and counters in a metadata store, in a scope
of its own::

    async with coordinate("etcd://127.0.0.1:2379/orders") as me:
        async with await LockManager(me).acquire("/locks/billing") as lock:
            ...

Everything runs in the event loop that entered `connect` or `coordinate`. Any asyncio event loop
works; uvloop is the fastest.
"""

from __future__ import annotations

from bookie.api.bookkeeper import BookKeeper, DigestName
from bookie.api.connecting import ClientOptions, connect, coordinate
from bookie.coordination.barriers import DoubleBarrier
from bookie.coordination.cache import JsonCodec, MetadataCache
from bookie.coordination.counters import Counter
from bookie.coordination.discovery import Discovery
from bookie.coordination.election import Election, LeaderState
from bookie.coordination.lock import Lock, LockState
from bookie.coordination.locks import LockManager, ReadWriteLocks
from bookie.coordination.membership import Group
from bookie.coordination.participant import Participant
from bookie.coordination.queues import Queue
from bookie.coordination.service_instance import ServiceInstance
from bookie.entry.entry import Entry
from bookie.ledger.connection.retrying import retry
from bookie.ledger.ledger_client import UNCLAIMED
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.read.handle import ReaderHandle
from bookie.ledger.recover.explanation import LedgerExplanation
from bookie.ledger.write.handle import WriterHandle
from bookie.log.catalog.log_policy import LogPolicy
from bookie.log.consume.commit import AutoCommit
from bookie.log.consume.consumer import LogConsumer
from bookie.log.consume.cursors import Cursors
from bookie.log.consume.group import GroupMember, GroupRecord, GroupStatus
from bookie.log.publish.publisher import LogPublisher, RecordBounds
from bookie.log.publish.range_writer import PendingRange, RangeWriter
from bookie.log.read.partitions_reader import PartitionsReader
from bookie.log.read.reader import LogReader
from bookie.log.read.status import LogStatus
from bookie.log.record.log_record import LogPosition, LogRecord
from bookie.log.record.positions import LogPositions
from bookie.log.record.record_encoder import NewRecord
from bookie.log.tidy.sweep import LogSweep
from bookie.log.write.writer import LogWriter
from bookie.metadata.connect import open_store
from bookie.metadata.model import Check, Delete, Put, Record, Resync, Stat
from bookie.metadata.store import MetadataStore

__all__ = [
    "UNCLAIMED",
    "AutoCommit",
    "BookKeeper",
    "Check",
    "ClientOptions",
    "Counter",
    "Cursors",
    "Delete",
    "DigestName",
    "Discovery",
    "DoubleBarrier",
    "Election",
    "Entry",
    "Group",
    "GroupMember",
    "GroupRecord",
    "GroupStatus",
    "JsonCodec",
    "LeaderState",
    "LedgerExplanation",
    "LedgerMetadata",
    "Lock",
    "LockManager",
    "LockState",
    "LogConsumer",
    "LogPolicy",
    "LogPosition",
    "LogPositions",
    "LogPublisher",
    "LogReader",
    "LogRecord",
    "LogStatus",
    "LogSweep",
    "LogWriter",
    "MetadataCache",
    "MetadataStore",
    "NewRecord",
    "Participant",
    "PartitionsReader",
    "PendingRange",
    "Put",
    "Queue",
    "RangeWriter",
    "ReadWriteLocks",
    "ReaderHandle",
    "Record",
    "RecordBounds",
    "Resync",
    "ServiceInstance",
    "Stat",
    "WriterHandle",
    "connect",
    "coordinate",
    "open_store",
    "retry",
]
