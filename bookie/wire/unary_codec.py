"""Converts the rare messages between bytes and immutable values, with generated protobuf code.

The module `codec` handles the frequent messages. A parser of requests accepts any bytes: it returns
values within their bounds, or raises :class:`BadRequestError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from bookie._pb import bookie_pb2 as pb
from bookie.errors import BadRequestError
from bookie.ids import MAX_ID, NO_ENTRY, Status
from bookie.wire.codec import (
    LAC_PACKET_BYTES_MAX,
    MASTER_KEY_BYTES_MAX,
    MESSAGE_TEXT_CHARACTERS_MAX,
)
from bookie.wire.commands import Info, LacReply, LacState, LedgerRow, Reply

WATCH_IDS_MAX: Final = 4096
"""The largest number of ledgers that one message subscribes or unsubscribes."""

WATCH_BYTES_MAX: Final = 64 * 1024
"""A larger message names too many ledgers, and parsing it would take ten times its size."""

LEDGER_ROWS_BYTES_MAX: Final = 256 * 1024
"""The largest page of ledgers, more than twice the size of a bookie's pages. Two bytes of a page
can become a row of 200 bytes."""

_M = TypeVar("_M", bound=Message)

Ranges = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Two arrays: the first ids and the last ids (inclusive) of ascending, disjoint ranges."""


class WatchChange(NamedTuple):
    """Ledgers to watch from now on, and ledgers to stop watching."""

    subscribe: Sequence[int]
    unsubscribe: Sequence[int]


# -- requests --------------------------------------------------------------------------------------


def parse_read_lac_request(data: bytes) -> tuple[int, bytes]:
    """Return the ledger id and the key from a request for a LAC."""
    message = _parse(pb.ReadLacRequest, data)
    return _ledger_id(message.ledger_id), _key(message.master_key)


def parse_fence_request(data: bytes) -> tuple[int, bytes]:
    """Return the ledger id and the key from a request to fence a ledger."""
    message = _parse(pb.FenceRequest, data)
    return _ledger_id(message.ledger_id), _key(message.master_key)


def parse_force_request(data: bytes) -> int:
    """Return the id of the ledger whose accepted entries the bookie must make durable."""
    return _ledger_id(_parse(pb.ForceRequest, data).ledger_id)


def parse_write_lac_request(data: bytes) -> tuple[int, bytes, bytes]:
    """Return ledger id, key and explicit LAC packet; only the size of the packet is checked."""
    message = _parse(pb.WriteLacRequest, data)
    packet = message.lac_packet
    if not 0 < len(packet) <= LAC_PACKET_BYTES_MAX:
        raise BadRequestError(f"a last add confirmed does not have {len(packet)} bytes")
    return _ledger_id(message.ledger_id), _key(message.master_key), packet


def parse_list_entries_request(data: bytes) -> tuple[int, int, int, bytes]:
    """Return ledger id, first and last entry id to list, and key; a last id of -1 is MAX_ID."""
    message = _parse(pb.ListEntriesRequest, data)
    first = message.first_entry_id
    last = MAX_ID if message.last_entry_id == NO_ENTRY else message.last_entry_id
    if not 0 <= first <= last:
        raise BadRequestError(f"entries {first} to {last} are not a range of entry ids")
    return _ledger_id(message.ledger_id), first, last, _key(message.master_key)


def parse_list_ledgers_request(data: bytes) -> int:
    """Return the ledger id after which the listing begins; -1 lists all ledgers."""
    after = _parse(pb.ListLedgersRequest, data).after_ledger_id
    if after < -1:
        raise BadRequestError(f"ledger id {after} is not in -1 … 2^63-1")
    return after


def parse_info_request(data: bytes) -> None:
    """Check that the bytes are an info request, which has no fields."""
    _parse(pb.GetInfoRequest, data)


def encode_watch_change(change: WatchChange) -> bytes:
    """Encode a change of the watched ledgers."""
    return pb.WatchLacRequest(
        subscribe=change.subscribe, unsubscribe=change.unsubscribe
    ).SerializeToString()


def parse_watch_request(data: bytes) -> WatchChange:
    """Return the ledgers to watch and to stop watching, at most `WATCH_IDS_MAX` together."""
    _bound(data, WATCH_BYTES_MAX)
    message = _parse(pb.WatchLacRequest, data)
    count = len(message.subscribe) + len(message.unsubscribe)
    if count > WATCH_IDS_MAX:
        raise BadRequestError(f"a message names {count} ledgers; at most {WATCH_IDS_MAX} may be")
    change = WatchChange(list(message.subscribe), list(message.unsubscribe))
    for ledger_id in (*change.subscribe, *change.unsubscribe):
        _ledger_id(ledger_id)
    return change


# -- answers ---------------------------------------------------------------------------------------


def encode_lac_reply(reply: LacReply) -> bytes:
    """Encode the answer to ReadLac or Fence."""
    return pb.LacResponse(
        **_head(reply),
        last_entry=reply.last_entry,
        lac_packet=reply.lac_packet,
        max_lac=reply.max_lac,
        fenced=reply.fenced,
    ).SerializeToString()


def parse_lac_reply(data: bytes) -> LacReply:
    """Parse the answer to ReadLac or Fence; the packets are not verified."""
    message = _parse(pb.LacResponse, data)
    return LacReply(
        _status(message.status),
        message.message,
        message.last_entry,
        message.lac_packet,
        message.max_lac,
        message.fenced,
        message.retry_after_ms,
    )


def encode_reply(reply: Reply) -> bytes:
    """Encode the answer to Force or WriteLac, whose responses have the same fields."""
    return pb.ForceResponse(**_head(reply)).SerializeToString()


def parse_reply(data: bytes) -> Reply:
    """Parse the answer to Force or WriteLac."""
    message = _parse(pb.ForceResponse, data)
    return _reply(message)


def encode_ranges(reply: Reply, ranges: Ranges | None) -> bytes:
    """Encode one page of id ranges; only a page with status OK has ranges."""
    message = pb.ListEntriesResponse(**_head(reply))
    if ranges is not None:
        message.range_first.extend(ranges[0].tolist())
        message.range_last.extend(ranges[1].tolist())
    return message.SerializeToString()


def parse_ranges(data: bytes) -> tuple[Reply, Ranges]:
    """Parse one page of id ranges, which must be ascending and disjoint.

    Raises:
        BadRequestError: The bytes are not a ListEntriesResponse, or the ranges are not ascending
            and disjoint.
    """
    message = _parse(pb.ListEntriesResponse, data)
    # Numpy copies the bytes of the numbers unchanged, so ids above MAX_ID become negative.
    first = np.array(message.range_first, np.int64)
    last = np.array(message.range_last, np.int64)
    if (first < 0).any() or (last < 0).any():
        raise BadRequestError("an entry id of the listing is above 2^63-1")
    if len(first) != len(last) or (last < first).any() or (first[1:] <= last[:-1]).any():
        raise BadRequestError("the listing's ranges of entry ids do not ascend")
    return _reply(message), (first, last)


def encode_ledger_rows(reply: Reply, rows: Iterable[LedgerRow]) -> bytes:
    """Encode one page of ledgers; only a page with status OK has ledgers."""
    return pb.ListLedgersResponse(
        **_head(reply),
        ledgers=[
            pb.LedgerRow(
                ledger_id=row.ledger_id,
                fenced=row.fenced,
                limbo=row.limbo,
                first_entry_id=row.first_entry_id,
                last_entry_id=row.last_entry_id,
                entries=row.entries,
                bytes=row.payload_bytes,
                max_lac=row.max_lac,
                key_tag=row.key_tag,
            )
            for row in rows
        ],
    ).SerializeToString()


def parse_ledger_rows(data: bytes) -> tuple[Reply, list[LedgerRow]]:
    """Parse one page of ledgers, which has at most `LEDGER_ROWS_BYTES_MAX` bytes."""
    _bound(data, LEDGER_ROWS_BYTES_MAX)
    message = _parse(pb.ListLedgersResponse, data)
    rows = [
        LedgerRow(
            row.ledger_id,
            row.fenced,
            row.limbo,
            row.first_entry_id,
            row.last_entry_id,
            row.entries,
            row.bytes,
            row.max_lac,
            row.key_tag,
        )
        for row in message.ledgers
    ]
    return _reply(message), rows


def encode_info(reply: Reply, info: Info | None) -> bytes:
    """Encode a bookie's description of itself; only an answer with status OK contains one."""
    described = {} if info is None else asdict(info)
    status, text = _pb_status(reply.status), _cut_off(reply.message)
    return pb.GetInfoResponse(status=status, message=text, **described).SerializeToString()


def parse_info(data: bytes) -> tuple[Reply, Info]:
    """Parse a bookie's description of itself."""
    message = _parse(pb.GetInfoResponse, data)
    info = Info(**{field.name: getattr(message, field.name) for field in fields(Info)})
    return Reply(_status(message.status), message.message), info


def encode_lac_state(state: LacState) -> bytes:
    """Encode one update to a watcher."""
    return pb.LacUpdate(
        ledger_id=state.ledger_id,
        max_lac=state.max_lac,
        fenced=state.fenced,
        status=_pb_status(state.status),
        lac_packet=state.lac_packet,
        key_tag=state.key_tag,
    ).SerializeToString()


def parse_lac_state(data: bytes) -> LacState:
    """Parse one update to a watcher."""
    message = _parse(pb.LacUpdate, data)
    return LacState(
        message.ledger_id,
        message.max_lac,
        message.fenced,
        _status(message.status),
        message.lac_packet,
        message.key_tag,
    )


# -- what messages share ---------------------------------------------------------------------------


def _parse(kind: type[_M], data: bytes) -> _M:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise BadRequestError(f"the bytes are not a {kind.DESCRIPTOR.name}") from None


def _bound(data: bytes, size_max: int) -> None:
    if len(data) > size_max:
        raise BadRequestError(f"a message has {len(data)} bytes; at most {size_max} are allowed")


def _ledger_id(ledger_id: int) -> int:
    if not 0 <= ledger_id <= MAX_ID:
        raise BadRequestError(f"ledger id {ledger_id} is not in 0 … 2^63-1")
    return ledger_id


def _key(master_key: bytes) -> bytes:
    if len(master_key) > MASTER_KEY_BYTES_MAX:
        raise BadRequestError(
            f"a key has {len(master_key)} bytes; at most {MASTER_KEY_BYTES_MAX} are allowed"
        )
    return master_key


def _status(number: int) -> Status:
    try:
        return Status(number)
    except ValueError:
        raise BadRequestError(f"the message has the unknown status {number}") from None


def _pb_status(status: Status) -> Any:
    return status.value  # the generated code accepts numbers, but its stubs do not say so


def _head(reply: Reply | LacReply) -> dict[str, Any]:
    return {
        "status": _pb_status(reply.status),
        "message": _cut_off(reply.message),
        "retry_after_ms": reply.retry_after_ms,
    }


def _cut_off(text: str) -> str:
    return text[:MESSAGE_TEXT_CHARACTERS_MAX]


def _reply(message: Any) -> Reply:
    return Reply(_status(message.status), message.message, message.retry_after_ms)
