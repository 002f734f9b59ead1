"""Calls to one bookie as a stranger would make them: gRPC's own client, messages of the contract.

No class of the product's client takes part. So nothing is refused before it reaches the bookie.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc import aio
from grpc_health.v1 import health_pb2

from bookie._pb import bookie_pb2 as pb
from bookie.entry.checksum import crc32c
from bookie.entry.digest import Crc32cDigester
from bookie.entry.entry import pack_batch, pack_lac
from bookie.ids import INSTANCE_ID_METADATA_KEY
from bookie.wire.interfaces import SERVICE, BrokenCallError

ATTEMPTS_MAX = 20
ANSWER_SECONDS_MAX = 60.0
"""An answer comes at once; what hangs takes longer than this, even on a busy machine."""

KEY = b"k" * 32
"""The ledger key of all these ledgers."""

PAYLOAD = b"a payload"

Metadata = tuple[tuple[str, str], ...]


def channel_to(port: int, ca: bytes, key: bytes | None, certificate: bytes | None) -> Any:
    """A channel by TLS to a bookie of this machine."""
    credentials = grpc.ssl_channel_credentials(ca, key, certificate)
    return aio.secure_channel(f"127.0.0.1:{port}", credentials)


@dataclass(frozen=True, slots=True)
class RawBookie:
    """One bookie through one channel, for a caller whom `token` names, or the certificate."""

    channel: Any
    instance_id: str
    token: str = ""

    @property
    def metadata(self) -> Metadata:
        """What goes with each call."""
        pairs: Metadata = ((INSTANCE_ID_METADATA_KEY, self.instance_id),)
        return (*pairs, ("authorization", f"Bearer {self.token}")) if self.token else pairs

    async def unary(self, method: str, request: Message, answer: Any) -> Any:
        """Make a call with one answer."""
        call = self.channel.unary_unary(
            method if method.startswith("/") else f"/{SERVICE}/{method}",
            type(request).SerializeToString,
            answer.FromString,
        )
        return await call(request, metadata=self.metadata, timeout=ANSWER_SECONDS_MAX)

    async def pages(self, method: str, request: Message, answer: Any) -> list[Any]:
        """Make a call with pages of answers."""
        call = self.channel.unary_stream(
            f"/{SERVICE}/{method}", type(request).SerializeToString, answer.FromString
        )
        started = call(request, metadata=self.metadata, timeout=ANSWER_SECONDS_MAX)
        return [page async for page in started]

    @asynccontextmanager
    async def stream(self, method: str, request: Any, answer: Any) -> Any:
        """Open a stream, and cancel it at the end."""
        call = self.channel.stream_stream(
            f"/{SERVICE}/{method}", request.SerializeToString, answer.FromString
        )(metadata=self.metadata, timeout=ANSWER_SECONDS_MAX)
        try:
            yield call
        finally:
            call.cancel()

    async def streamed(self, method: str, request: Message, answer: Any) -> Any:
        """Send one request in a stream of its own; the first answer.

        A bookie that refuses a whole stream ends it, perhaps before the request is sent. gRPC then
        reports an internal error and drops the answer, so the request is sent again.
        """
        for _ in range(ATTEMPTS_MAX):
            async with self.stream(method, type(request), answer) as call:
                try:
                    await call.write(request)
                except BrokenCallError:
                    continue  # by frames
                except aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.INTERNAL:
                        raise
                    continue
                return await call.read()
        raise AssertionError(f"{method} ended {ATTEMPTS_MAX} times before its first message")


def add(ledger_id: int, entry_id: int, *, recovery: bool = False) -> pb.AddRequest:
    """A request to add one entry; its id is that of the request, too."""
    batch = pack_batch(ledger_id, entry_id, entry_id - 1, 0, [PAYLOAD], Crc32cDigester())
    payload = bytes(batch.payload)
    return pb.AddRequest(
        request_id=entry_id + 1,
        ledger_id=ledger_id,
        master_key=KEY,
        first_entry_id=entry_id,
        entry_sizes=[len(payload)],
        payload_crc32c=crc32c(payload),
        recovery=recovery,
        payload=payload,
    )


def read(ledger_id: int, *, fence: bool = False) -> pb.ReadRequest:
    return pb.ReadRequest(
        ledger_id=ledger_id, last_entry_id=0, fence=fence, master_key=KEY, request_id=1
    )


def lac_of(ledger_id: int) -> bytes:
    return pack_lac(ledger_id, 0, Crc32cDigester())


def status_of_read(answer: Any) -> int:
    """The status, after a check that a refusal has no payload, and a good answer has it."""
    assert (PAYLOAD in answer.payload) is (answer.status == pb.STATUS_OK)
    return int(answer.status)


async def _read(bookie: RawBookie, ledger_id: int, *, fence: bool = False) -> int:
    request = read(ledger_id, fence=fence)
    return status_of_read(await bookie.unary("Read", request, pb.ReadResponse))


async def _read_stream(bookie: RawBookie, ledger_id: int, *, fence: bool = False) -> int:
    request = read(ledger_id, fence=fence)
    return status_of_read(await bookie.streamed("ReadStream", request, pb.ReadResponse))


async def _add(bookie: RawBookie, ledger_id: int, *, recovery: bool = False) -> int:
    request = add(ledger_id, 1, recovery=recovery)
    return int((await bookie.streamed("AddStream", request, pb.AddResponse)).status)


async def _watch(bookie: RawBookie, ledger_id: int) -> int:
    request = pb.WatchLacRequest(subscribe=[ledger_id])
    answer = await bookie.streamed("WatchLac", request, pb.LacUpdate)
    assert (answer.max_lac == -1) or answer.status == pb.STATUS_OK
    return int(answer.status)


async def _read_lac(bookie: RawBookie, ledger_id: int) -> int:
    request = pb.ReadLacRequest(ledger_id=ledger_id, master_key=KEY)
    answer = await bookie.unary("ReadLac", request, pb.LacResponse)
    assert bool(answer.last_entry) is (answer.status == pb.STATUS_OK)
    return int(answer.status)


async def _fence(bookie: RawBookie, ledger_id: int) -> int:
    request = pb.FenceRequest(ledger_id=ledger_id, master_key=KEY)
    return int((await bookie.unary("Fence", request, pb.LacResponse)).status)


async def _force(bookie: RawBookie, ledger_id: int) -> int:
    request = pb.ForceRequest(ledger_id=ledger_id)
    return int((await bookie.unary("Force", request, pb.ForceResponse)).status)


async def _write_lac(bookie: RawBookie, ledger_id: int) -> int:
    request = pb.WriteLacRequest(ledger_id=ledger_id, master_key=KEY, lac_packet=lac_of(ledger_id))
    return int((await bookie.unary("WriteLac", request, pb.WriteLacResponse)).status)


async def _list_entries(bookie: RawBookie, ledger_id: int) -> int:
    request = pb.ListEntriesRequest(ledger_id=ledger_id, last_entry_id=-1)
    answers = await bookie.pages("ListEntries", request, pb.ListEntriesResponse)
    assert any(one.range_first for one in answers) is (answers[0].status == pb.STATUS_OK)
    return int(answers[0].status)


async def _list_ledgers(bookie: RawBookie, _ledger_id: int) -> int:
    request = pb.ListLedgersRequest(after_ledger_id=-1)
    answers = await bookie.pages("ListLedgers", request, pb.ListLedgersResponse)
    assert any(one.ledgers for one in answers) is (answers[0].status == pb.STATUS_OK)
    return int(answers[0].status)


async def _get_info(bookie: RawBookie, _ledger_id: int) -> int:
    answer = await bookie.unary("GetInfo", pb.GetInfoRequest(), pb.GetInfoResponse)
    assert bool(answer.bookie_id) is (answer.status == pb.STATUS_OK)
    return int(answer.status)


async def _health(bookie: RawBookie, _ledger_id: int) -> int:
    method, request = "/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest()
    answer = await bookie.unary(method, request, health_pb2.HealthCheckResponse)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    return int(pb.STATUS_OK)


Call = Callable[[RawBookie, int], Awaitable[int]]

CALLS: Mapping[str, Call] = {
    "AddStream": _add,
    "AddStream recovery": lambda b, i: _add(b, i, recovery=True),
    "Read": _read,
    "Read fencing": lambda b, i: _read(b, i, fence=True),
    "ReadStream": _read_stream,
    "ReadStream fencing": lambda b, i: _read_stream(b, i, fence=True),
    "ReadLac": _read_lac,
    "Fence": _fence,
    "WatchLac": _watch,
    "Force": _force,
    "WriteLac": _write_lac,
    "ListEntries": _list_entries,
    "ListLedgers": _list_ledgers,
    "GetInfo": _get_info,
    "health": _health,
}
"""Makes one call about a ledger that holds entry 0, and returns the status of the answer."""

CHANGES = {
    "AddStream": "an entry",
    "AddStream recovery": "an entry",
    "Read fencing": "a fence",
    "ReadStream fencing": "a fence",
    "Fence": "a fence",
    "WriteLac": "a LAC",
}
"""Calls that change the ledger, and what is there afterwards."""


async def prepare(admin: RawBookie, ledger_ids: Iterable[int]) -> None:
    """Add entry 0 to each of these ledgers."""
    ids = list(ledger_ids)
    async with admin.stream("AddStream", pb.AddRequest, pb.AddResponse) as call:
        for ledger_id in ids:
            await call.write(add(ledger_id, 0))
        for _ in ids:
            answer = await call.read()
            assert answer.status == pb.STATUS_OK, answer


async def effect(admin: RawBookie, ledger_id: int) -> str:
    """What has come to a ledger since `prepare`, as `CHANGES` call it; empty for nothing."""
    request = pb.ReadLacRequest(ledger_id=ledger_id, master_key=KEY)
    answer = await admin.unary("ReadLac", request, pb.LacResponse)
    listing = pb.ListEntriesRequest(ledger_id=ledger_id, last_entry_id=-1)
    pages = await admin.pages("ListEntries", listing, pb.ListEntriesResponse)
    held = [
        (first, last)
        for page in pages
        for first, last in zip(page.range_first, page.range_last, strict=True)
    ]
    assert answer.status == pages[0].status == pb.STATUS_OK
    found = {
        "an entry": held != [(0, 0)],
        "a fence": answer.fenced,
        "a LAC": bool(answer.lac_packet),
    }
    return ", ".join(name for name, is_there in found.items() if is_there)


async def until_status(call: Callable[[], Awaitable[int]], wanted: int, seconds: float) -> None:
    """Repeat a call until its answer has this status."""
    async with asyncio.timeout(seconds):
        while True:
            if await call() == wanted:
                return
            await asyncio.sleep(0.05)
