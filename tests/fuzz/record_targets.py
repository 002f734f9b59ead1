"""Records of the metadata store, and records in logs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast

from bookie.cluster import cluster_settings, instance
from bookie.cluster.cookie import decode_cookie, encode_cookie
from bookie.cluster.layout import FLAT, HIERARCHICAL, decode_layout, encode_layout
from bookie.cluster.registration_record import decode_registration, encode_registration
from bookie.coordination import counters, discovery
from bookie.coordination.cache import JsonCodec
from bookie.coordination.claim import decode_claim, encode_claim
from bookie.coordination.service_instance import decode_service_instance, encode_service_instance
from bookie.entry.entry import Entries
from bookie.errors import BadRequestError
from bookie.ledger import metadata as ledger_metadata
from bookie.ledger import underreplicated as repair
from bookie.ledger.catalog import ledger_ids, removal
from bookie.ledger.copies import marks
from bookie.ledger.deletion_proof import DeletionProof, decode_proof, encode_proof
from bookie.log.catalog import group_metadata, log_cursor, log_metadata, log_policy, logs
from bookie.log.consume import group_leader
from bookie.log.record import log_record
from bookie.log.record.log_record import LogPosition, LogRecord, decode_log_record
from bookie.log.record.log_records import decode_log_records
from bookie.log.record.producers import SequenceRun, decode_producers, encode_producers
from bookie.metadata.export import FORMAT, FORMAT_VERSION, _Seal, parse_export
from bookie.metadata.local import tree
from bookie.metadata.model import ChangeKind, Record, Stat
from bookie.node import garbage_memory
from tests.fuzz.target import Target, vectors

LEDGER = 7
LINE = "\n"


def record_of(data: bytes) -> Record:
    return cast("Record", SimpleNamespace(key="/some/key", name="key", value=data, version=3))


def by_record(decode: Callable[[Record], Any]) -> Callable[[bytes], Any]:
    return lambda data: decode(record_of(data))


def finished(call: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the call waits")


def removal_of(data: bytes) -> Any:
    async def get(_key: str) -> Record:
        return record_of(data)

    return finished(removal._find(SimpleNamespace(get=get)))  # type: ignore[arg-type]


def log_records(data: bytes) -> Any:
    """Everything that is asked of the payload of an entry."""
    record = decode_log_record(data)
    greatest = log_record.greatest_timestamp_ms(data)
    raised = log_record.with_greatest(data, min(greatest + 1, 2**63 - 1))
    assert decode_log_record(raised)[:5] == record[:5]
    assert log_record.greatest_timestamp_ms(raised) >= greatest
    assert decode_log_record(memoryview(data)) == record
    log_record.follows_control(data)
    entries = Entries(range(2), [data, data])
    decoded = list(decode_log_records(entries, LogPosition(LEDGER, 0, 0, 0)))
    assert len(decoded) == (0 if log_record.is_control(data) else 2)
    assert all(one[:5] == record[:5] for one in decoded)
    return record, max(greatest, record.timestamp_ms), log_record.is_control(data)


def encode_record(value: tuple[LogRecord, int, bool]) -> bytes:
    record, greatest, control = value
    return log_record.encode_log_record(record, greatest_ms=greatest, is_control=control)


def exported() -> bytes:
    seal = _Seal()
    lines = [
        seal.line({"format": FORMAT, "version": FORMAT_VERSION}),
        seal.line({"key": "/a", "value": "AAAA"}),
        seal.line({"key": "/a/b", "value": ""}),
    ]
    seal.records = 2
    return LINE.join([*lines, seal.last()]).encode()


def sealed_export(data: bytes) -> Any:
    """An export whose last line fits, so that the other lines are read as well."""
    seal = _Seal()
    lines = data.decode("utf-8", "replace").split(LINE)
    for line in lines:
        seal.take(line)
    seal.take("")
    last = f'{{"records": {max(0, len(lines) - 1)}, "sha256": "{seal.digest_before_last}"}}'
    return parse_export([*lines, last])


def instances(data: bytes) -> Any:
    """A record that cannot be read leaves the others usable."""
    found = discovery._decoded({"odd": data, "right": INSTANCE})
    assert "right" in found
    return found


def member(data: bytes) -> Any:
    record = record_of(data)
    logs.decoded(group_metadata.decode_member_profile, record)
    return group_leader.read_profile(record)


def local_record(data: bytes) -> Any:
    return tree._decode_record("/some/key", data)


INSTANCE = vectors("service_instances")[0]
STAT = Stat("/some/key", 3, None, None, None, False, False, False)
EXPORT = exported()
PROOF = DeletionProof(1700000000000, "host:17")
REPAIR = repair.EndedRepair(LEDGER, "repaired", 10, 1000, 0.25, "", 1700000000000)
MEMORY = garbage_memory.GarbageMemory({3: 17}, 4, True, 12.5, "", "why", 3)
CHANGES = [(ChangeKind.CREATED, "/a"), (ChangeKind.DELETED, "/a/\u20ac")]
RUNS = [SequenceRun(0, LEDGER, 0, 0, 5), SequenceRun(9, LEDGER, 7, 7, 2)]

TARGETS: Sequence[Target] = (
    Target(
        "metadata.registration",
        decode_registration,
        vectors("registrations"),
        encode=encode_registration,
    ),
    Target("metadata.cookie", decode_cookie, vectors("cookies"), encode=encode_cookie),
    Target(
        "metadata.layout",
        decode_layout,
        [encode_layout(FLAT), encode_layout(HIERARCHICAL)],
        encode=encode_layout,
    ),
    Target(
        "metadata.instance_id",
        by_record(instance._instance_id),
        [str(uuid.UUID(int=5)).encode()],
        encode=str.encode,
    ),
    Target("metadata.setting", by_record(cluster_settings.setting_text), [b"8MiB"]),
    Target("metadata.claim", decode_claim, vectors("claims"), encode=encode_claim),
    Target(
        "metadata.service_instance",
        decode_service_instance,
        vectors("service_instances"),
        encode=encode_service_instance,
    ),
    Target("metadata.instances", instances, vectors("service_instances"), ()),
    Target(
        "metadata.json_of_user",
        lambda data: JsonCodec().decode("/some/key", data, STAT),
        [b'{"a": [1, 2.5, null]}'],
    ),
    Target("metadata.counter", lambda data: counters._parse("/c", data), [b"17"]),
    Target("metadata.id_counter", lambda data: ledger_ids._parse("/c", data), [b"17"]),
    Target("metadata.batch_number", by_record(logs._batch_of), [b"17"]),
    Target(
        "metadata.ledger",
        lambda data: ledger_metadata.decode(LEDGER, data),
        vectors("ledger_metadata"),
        encode=ledger_metadata.encode,
        encode_refuses=(BadRequestError,),  # there is no room for its end
    ),
    Target(
        "metadata.mark",
        lambda data: repair.decode_mark(LEDGER, data),
        [repair.encode_mark(repair.UnderreplicatedLedger(LEDGER, ("b1", "b2"), 17))],
        encode=repair.encode_mark,
    ),
    Target(
        "metadata.lock",
        repair.decode_lock,
        [repair.encode_lock("b1:17", "abc")],
        encode=lambda one: repair.encode_lock(*one),
    ),
    Target(
        "metadata.lock_of_mark",
        lambda data: marks._lock_of("/k", data),
        [repair.encode_lock("b", "t")],
    ),
    Target(
        "metadata.failure",
        lambda data: repair.decode_failure(LEDGER, data),
        [repair.encode_failure(repair.RepairFailure(LEDGER, "failed", "why", 3, 17))],
        encode=repair.encode_failure,
    ),
    Target(
        "metadata.departure",
        lambda data: repair.decode_departure("b1", data),
        [repair.encode_departure(repair.Departure("b1", 17))],
        encode=repair.encode_departure,
    ),
    Target(
        "metadata.repair_history",
        repair.decode_history,
        [repair.encode_history([REPAIR, REPAIR])],
        encode=repair.encode_history,
    ),
    Target("metadata.deletion_proof", decode_proof, [encode_proof(PROOF)], encode=encode_proof),
    Target(
        "metadata.removal",
        removal_of,
        [removal._encode(removal._Removal({"/a": b"1", "/b": b""}, True, 3))],
        encode=removal._encode,
    ),
    Target(
        "log.definition",
        log_metadata.decode_log_definition,
        vectors("log_metadata", "record", "definition"),
        encode=log_metadata.encode_log_definition,
    ),
    Target(
        "log.head",
        log_metadata.decode_log_head,
        vectors("log_metadata", "record", "head"),
        encode=log_metadata.encode_log_head,
    ),
    Target(
        "log.chunk",
        log_metadata.decode_log_chunk,
        vectors("log_metadata", "record", "chunk"),
        encode=log_metadata.encode_log_chunk,
    ),
    Target(
        "log.policy",
        log_policy.decode_policy,
        [
            log_policy.encode_policy(log_policy.DEFAULTS),
            log_policy.encode_policy(log_policy.LogPolicy()),
        ],
        encode=log_policy.encode_policy,
    ),
    Target(
        "log.cursor",
        log_cursor.decode_log_cursor,
        vectors("log_cursors"),
        encode=log_cursor.encode_log_cursor,
    ),
    Target(
        "log.member",
        group_metadata.decode_member_profile,
        vectors("groups", "kind", "member"),
        encode=group_metadata.encode_member_profile,
    ),
    Target("log.member_record", member, vectors("groups", "kind", "member")),
    Target(
        "log.pattern",
        lambda data: group_leader.split_pattern(data.decode("utf-8", "surrogateescape")),
        [b"orders-*", b"shop/orders-*"],
        (BadRequestError,),
    ),
    Target(
        "log.assignment",
        group_metadata.decode_group_assignment,
        vectors("groups", "kind", "assignment"),
        encode=group_metadata.encode_group_assignment,
    ),
    Target(
        "log.producers",
        decode_producers,
        [encode_producers({"p1": RUNS, "p2": RUNS[:1]}), encode_producers({})],
        encode=encode_producers,
    ),
    Target("log.record", log_records, vectors("log_records"), encode=encode_record),
    Target(
        "node.garbage_memory",
        garbage_memory.decode_memory,
        [garbage_memory.encode_memory(MEMORY)],
        encode=garbage_memory.encode_memory,
    ),
    Target(
        "node.absence",
        garbage_memory.decode_absence,
        [garbage_memory.encode_absence(garbage_memory.Absence(1.5, 17))],
        encode=garbage_memory.encode_absence,
    ),
    Target(
        "metadata.export",
        lambda data: parse_export(data.decode("utf-8", "replace").split(LINE)),
        [EXPORT],
    ),
    Target(
        "metadata.export_sealed",
        sealed_export,
        [LINE.join(EXPORT.decode().split(LINE)[:-1]).encode()],
    ),
    Target(
        "local_store.changes",
        lambda data: tree._decode_changes(3, data),
        [tree._encode_changes(CHANGES)],
        encode=lambda one: tree._encode_changes([(event.kind, event.key) for event in one]),
    ),
    Target(
        "local_store.record", local_record, [tree._HEADER.pack(3, 1, 17, 18, bytes(16)) + b"value"]
    ),
    Target(
        "local_store.session",
        tree._decode_session,
        [tree._encode_session(tree.SessionRow(10.0, "boot", 17))],
        encode=tree._encode_session,
    ),
)
