"""The golden bytes beside this file: what is written is exactly them, and they are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bookie.cluster.cookie import Cookie, CookieState, decode_cookie, encode_cookie
from bookie.cluster.registration_record import (
    Endpoint,
    Registration,
    decode_registration,
    encode_registration,
)
from bookie.coordination.claim import Claim, ClaimMode, decode_claim, encode_claim
from bookie.coordination.service_instance import (
    ServiceInstance,
    decode_service_instance,
    encode_service_instance,
)
from bookie.entry.batch import EntryBatch
from bookie.entry.digest import DigestType, derive_key, digester_for_key
from bookie.entry.entry import pack_batch, pack_lac, parse_header, unpack_lac, unpack_packet
from bookie.ledger import metadata as ledger_metadata
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.log.catalog import log_metadata
from bookie.log.catalog.group_metadata import (
    GroupAssignment,
    MemberProfile,
    decode_group_assignment,
    decode_member_profile,
    encode_group_assignment,
    encode_member_profile,
)
from bookie.log.catalog.log_cursor import LogCursor, decode_log_cursor, encode_log_cursor
from bookie.log.catalog.log_metadata import (
    LogChunk,
    LogDefinition,
    LogHead,
    LogMode,
    LogOwner,
    LogRange,
)
from bookie.log.record.log_record import (
    LogRecord,
    Producer,
    decode_log_record,
    encode_log_record,
    follows_control,
    greatest_timestamp_ms,
    is_control,
    with_greatest,
)
from bookie.node.engine.format import blocks, index_rows, pages, records

HERE = Path(__file__).parent
Fields = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One case of one file."""

    file: str
    name: str
    fields: Fields
    data: bytes
    decode_only: bool


def load() -> list[Case]:
    """Every case of every file."""
    return [
        Case(
            file=path.stem,
            name=case["name"],
            fields=case["fields"],
            data=(
                case["text"].encode("ascii")
                if "text" in case
                else bytes.fromhex(case["hex"]) + bytes(case.get("zeros_after", 0))
            ),
            decode_only=case.get("decode_only", False),
        )
        for path in sorted(HERE.glob("*.json"))
        for case in json.loads(path.read_text(encoding="ascii"))
    ]


def unhex(fields: Fields) -> Fields:
    """The fields, with those that end in `_hex` as bytes under their own name."""
    return {
        name.removesuffix("_hex"): bytes.fromhex(value) if name.endswith("_hex") else value
        for name, value in fields.items()
    }


def check_entry_packet(fields: Fields, data: bytes) -> None:
    """Packing gives the bytes; the bytes verify to the payload."""
    digest_type = DigestType[fields["digest_type"]]
    assert derive_key(fields["password"]) == fields["ledger_key"]
    digester = digester_for_key(digest_type, derive_key(fields["password"]))
    ledger_id, entry_id = fields["ledger_id"], fields["entry_id"]
    batch = pack_batch(
        ledger_id,
        entry_id,
        fields["last_add_confirmed"],
        fields["length"] - len(fields["payload"]),
        [fields["payload"]],
        digester,
    )
    assert batch.payload == data
    assert unpack_packet(ledger_id, entry_id, data, digester) == fields["payload"]
    assert parse_header(data) == (
        ledger_id,
        entry_id,
        fields["last_add_confirmed"],
        fields["length"],
    )


def check_lac_packet(fields: Fields, data: bytes) -> None:
    """Packing gives the bytes; the bytes prove the LAC."""
    digester = digester_for_key(DigestType[fields["digest_type"]], derive_key(fields["password"]))
    assert pack_lac(fields["ledger_id"], fields["last_add_confirmed"], digester) == data
    assert unpack_lac(fields["ledger_id"], data, digester) == fields["last_add_confirmed"]


def check_file_header(fields: Fields, data: bytes) -> None:
    """The header is written and read."""
    header = blocks.FileHeader(
        blocks.FileKind[fields["kind"]], fields["number"], fields["nonce"], fields["alignment"]
    )
    assert header.encode() == data
    assert blocks.decode_file_header(data) == header


def check_block(fields: Fields, data: bytes) -> None:
    """Header, body and padding make the bytes; the bytes validate."""
    nonce, body, alignment = fields["nonce"], fields["body"], fields["alignment"]
    header = blocks.BlockHeader(
        sequence=fields["sequence"],
        durable_upto=fields["durable_upto"],
        body_length=len(body),
        record_count=fields["record_count"],
        body_crc=blocks.body_crc(nonce, fields["sequence"], [body]),
    )
    written = blocks.encode_block_header(nonce, header) + body
    assert written + blocks.padding(len(written), alignment) == data
    assert len(data) == blocks.block_size_on_disk(len(body), alignment)
    assert blocks.parse_block_header(data, nonce) == header
    assert (
        len(list(records.parse_records(memoryview(body), header.record_count)))
        == (fields["record_count"])
    )


def check_record(fields: Fields, data: bytes) -> None:
    """The record is written and read."""
    kind = fields.pop("type")
    ((_, record),) = records.parse_records(memoryview(data), 1)
    if kind == "entries":
        assert isinstance(record, records.EntriesRecord)
        steps = fields["steps"]
        batch = EntryBatch(
            fields["ledger_id"],
            fields["first_entry_id"],
            None if steps is None else np.array(steps, dtype=np.int64),
            np.array(fields["sizes"], dtype=np.int64),
            fields["payload"],
        )
        head = records.encode_entries_head(batch, fields["payload_crc32c"], fields["recovery"])
        assert head + fields["payload"] == data
        assert record.payload_crc32c == fields["payload_crc32c"]
        assert record.recovery == fields["recovery"]
        assert record.payload_offset == len(head)
        assert record.batch.entry_ids().tolist() == batch.entry_ids().tolist()
        assert record.batch.sizes.tolist() == fields["sizes"]
        assert record.batch.payload == fields["payload"]
        return
    encode: Callable[..., bytes] = getattr(records, f"encode_{kind}")
    assert encode(*fields.values()) == data
    assert list(asdict(record).values()) == list(fields.values())


def check_index_page(fields: Fields, data: bytes) -> None:
    """The page is written and read, under its key."""
    slots = np.zeros((1, pages.SLOTS_PER_PAGE, 3), np.uint32)
    for position, slot in fields["slots"].items():
        slots[0, int(position)] = slot
    pair = (fields["key"], data)
    number = np.array([fields["page_number"]], dtype=np.int64)
    assert pages.encode_pages(fields["ledger_id"], number, slots) == [pair]
    assert pages.parse_page_key(fields["key"]) == (fields["ledger_id"], fields["page_number"])
    numbers, decoded = pages.decode_pages([pair])
    assert numbers.tolist() == [fields["page_number"]]
    assert (decoded == slots).all()


def check_index_row(fields: Fields, data: bytes) -> None:
    """The row is written and read, under its key if it has one."""
    match fields.pop("row"):
        case "ledger":
            ledger_id = fields.pop("ledger_id")
            assert index_rows.ledger_key(ledger_id) == fields.pop("key")
            held = index_rows.HeldIn(*map(tuple, fields.pop("held_in", ())))
            ledger_row = index_rows.LedgerIndexRow(**fields, held_in=held)
            assert index_rows.encode_ledger_row(ledger_id, ledger_row) == data
            assert index_rows.decode_ledger_row(ledger_id, data) == ledger_row
        case "file":
            number = fields.pop("file_number")
            assert index_rows.file_key(number) == fields.pop("key")
            file_row = index_rows.FileRow(
                blocks.FileKind[fields["kind"]],
                index_rows.FileState[fields["state"]],
                fields["size_bytes"],
                fields["live_bytes"],
            )
            assert index_rows.encode_file_row(number, file_row) == data
            assert index_rows.decode_file_row(number, data) == file_row
        case _:
            mark = index_rows.Mark(**fields)
            assert index_rows.encode_mark(mark) == data
            assert index_rows.decode_mark(data) == mark


def ledger_of(fields: Fields) -> LedgerMetadata:
    """The metadata that the fields describe."""
    return LedgerMetadata(
        **{
            **fields,
            "state": LedgerState[fields["state"]],
            "fragments": tuple(Fragment(first, tuple(b)) for first, b in fields["fragments"]),
            "digest_type": DigestType[fields["digest_type"]],
            "custom_metadata": {k: bytes.fromhex(v) for k, v in fields["custom_metadata"].items()},
        }
    )


def check_cookie(fields: Fields, data: bytes) -> None:
    """The cookie is written and read."""
    cookie = Cookie(
        **{
            **fields,
            "journal_dirs": tuple(fields["journal_dirs"]),
            "ledger_dirs": tuple(fields["ledger_dirs"]),
            "state": CookieState(fields["state"]),
        }
    )
    assert encode_cookie(cookie) == data
    assert decode_cookie(data) == cookie


def check_claim(fields: Fields, data: bytes) -> None:
    """The claim is written and read."""
    claim = Claim(**{**fields, "mode": ClaimMode(fields["mode"])})
    assert encode_claim(claim) == data
    assert decode_claim(data) == claim


def check_service_instance(fields: Fields, data: bytes) -> None:
    """The instance is written and read."""
    instance = ServiceInstance(**fields)
    assert encode_service_instance(instance) == data
    assert decode_service_instance(data) == instance


def check_registration(fields: Fields, data: bytes) -> None:
    """The registration is written and read."""
    endpoints = tuple(Endpoint(**endpoint) for endpoint in fields["endpoints"])
    registration = Registration(**{**fields, "endpoints": endpoints})
    assert encode_registration(registration) == data
    assert decode_registration(data) == registration


def check_log_metadata(fields: Fields, data: bytes) -> None:
    """The definition, head or chunk is written and read."""
    kind = fields.pop("record")
    if kind == "definition":
        definition = LogDefinition(**{**fields, "mode": LogMode(fields["mode"])})
        assert log_metadata.encode_log_definition(definition) == data
        assert log_metadata.decode_log_definition(data) == definition
        return
    ranges = tuple(LogRange(*one) for one in fields["ranges"])
    if kind == "chunk":
        chunk = LogChunk(fields["number"], ranges)
        assert log_metadata.encode_log_chunk(chunk) == data
        assert log_metadata.decode_log_chunk(data) == chunk
        return
    assert kind == "head"
    owner = None if fields["owner"] is None else LogOwner(**fields["owner"])
    head = LogHead(**{**fields, "owner": owner, "ranges": ranges})
    assert log_metadata.encode_log_head(head) == data
    assert log_metadata.decode_log_head(data) == head


def check_log_cursor(fields: Fields, data: bytes) -> None:
    """The cursor is written and read."""
    assert encode_log_cursor(LogCursor(**fields)) == data
    assert decode_log_cursor(data) == LogCursor(**fields)


def check_group(fields: Fields, data: bytes) -> None:
    """The member or the assignment is written and read."""
    if fields.pop("kind") == "member":
        profile = MemberProfile(**{**fields, "logs": tuple(fields["logs"])})
        assert encode_member_profile(profile) == data
        assert decode_member_profile(data) == profile
        return
    shares = {member: tuple(share) for member, share in fields["shares"].items()}
    assignment = GroupAssignment(**{**fields, "shares": shares})
    assert encode_group_assignment(assignment) == data
    assert decode_group_assignment(data) == assignment


CHECKS: dict[str, Callable[[Fields, bytes], None]] = {
    "entry_packets": check_entry_packet,
    "lac_packets": check_lac_packet,
    "file_headers": check_file_header,
    "blocks": check_block,
    "records": check_record,
    "index_pages": check_index_page,
    "index_rows": check_index_row,
    "cookies": check_cookie,
    "claims": check_claim,
    "registrations": check_registration,
    "service_instances": check_service_instance,
    "log_metadata": check_log_metadata,
    "log_cursors": check_log_cursor,
    "groups": check_group,
}
CASES = load()
LEDGERS = [case for case in CASES if case.file == "ledger_metadata"]
LOG_RECORDS = [case for case in CASES if case.file == "log_records"]
OTHERS = [case for case in CASES if case.file in CHECKS]


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: f"{case.file}: {case.name}")
def test_golden_bytes(case: Case) -> None:
    """The fields encode to the bytes, and the bytes decode to the fields."""
    CHECKS[case.file](unhex(case.fields), case.data)


@pytest.mark.parametrize("case", LEDGERS, ids=lambda case: case.name)
def test_golden_ledger_metadata(case: Case) -> None:
    """The bytes decode to the fields; the current version encodes to the bytes too."""
    metadata = ledger_of(unhex(case.fields))
    assert ledger_metadata.decode(metadata.ledger_id, case.data) == metadata
    assert (ledger_metadata.encode(metadata) == case.data) is not case.decode_only


@pytest.mark.parametrize("case", LOG_RECORDS, ids=lambda case: case.name)
def test_golden_log_record(case: Case) -> None:
    """The record is read; the current version is written too."""
    fields, data = unhex(case.fields), case.data
    producer = None
    if fields["producer"] is not None:
        producer = Producer(**fields["producer"])
    record = LogRecord(
        timestamp_ms=fields["timestamp_ms"],
        value=fields["value"],
        key=fields.get("key"),
        headers={name: bytes.fromhex(value) for name, value in fields["headers"].items()},
        producer=producer,
    )
    encoded = encode_log_record(
        record,
        greatest_ms=fields["greatest_ms"],
        is_control=fields["is_control"],
        follows_control=fields["follows_control"],
    )
    assert (encoded == data) is not case.decode_only
    assert decode_log_record(data) == record
    assert greatest_timestamp_ms(data) == fields["greatest_ms"]
    greatest_ms = min(fields["greatest_ms"] + 1, 2**63 - 1)
    later = with_greatest(data, greatest_ms)
    assert decode_log_record(later) == record
    assert greatest_timestamp_ms(later) == greatest_ms
    assert is_control(data) == fields["is_control"]
    assert follows_control(data) == (fields["follows_control"] or fields["is_control"])


def test_every_file_is_checked_and_described() -> None:
    """No file of vectors lies here unused or unexplained."""
    files = {path.stem for path in HERE.glob("*.json")}
    assert files == {*CHECKS, "ledger_metadata", "log_records"}
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}.json`" in readme for name in files)
