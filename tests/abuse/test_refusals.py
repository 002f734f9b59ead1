"""Requests that must be refused, each with its status, by a bookie that others use meanwhile."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bookie._pb import bookie_pb2 as pb
from bookie.wire.interfaces import SERVICE
from tests.abuse.target import Target
from tests.fault.daemon_process import new_home, refused
from tests.fault.raw_calls import CALLS, KEY, RawBookie, add, lac_of, prepare, read

Tell = Callable[[str, object], None]

WRONG_KEY = b"w" * 32
ODD_IDS = (-1, -(2**63), -(2**31))
OWN_LEDGER = 20_001


def with_key(ledger_id: int, key: bytes) -> Mapping[str, tuple[str, Any, Any]]:
    """Requests about a ledger with this key: method, request and type of the answer."""
    added, recovered = add(ledger_id, 0), add(ledger_id, 0, recovery=True)
    asked, fencing = read(ledger_id), read(ledger_id, fence=True)
    for request in (added, recovered, asked, fencing):
        request.master_key = key
    lac = pb.WriteLacRequest(ledger_id=ledger_id, master_key=key, lac_packet=lac_of(0))
    return {
        "add": ("AddStream", added, pb.AddResponse),
        "forged recovery": ("AddStream", recovered, pb.AddResponse),
        "read": ("Read", asked, pb.ReadResponse),
        "fencing read": ("Read", fencing, pb.ReadResponse),
        "read on a stream": ("ReadStream", asked, pb.ReadResponse),
        "fence": ("Fence", pb.FenceRequest(ledger_id=ledger_id, master_key=key), pb.LacResponse),
        "LAC": ("WriteLac", lac, pb.WriteLacResponse),
    }


async def status_of(bookie: RawBookie, method: str, request: Any, answer: Any) -> int:
    """The status of the first answer."""
    call = bookie.streamed if method.endswith("Stream") else bookie.unary
    return int((await call(method, request, answer)).status)


async def test_wrong_keys_and_odd_requests(target: Target, record_property: Tell) -> None:
    """Neither key, id, recovery flag nor digest gets through; the honest ledger goes on."""
    async with (
        target.under_attack("wrong keys and ids", record_property) as on,
        target.raw() as raw,
    ):
        count, until = 0, time.monotonic() + 4
        while time.monotonic() < until:
            for name, asked in with_key(target.honest.ledger_id, WRONG_KEY).items():
                if name != "LAC":  # its packet is of another ledger
                    assert await status_of(raw, *asked) == pb.STATUS_UNAUTHORIZED, name
            for ledger_id in ODD_IDS:
                for name, asked in with_key(0, KEY).items():
                    asked[1].ledger_id = ledger_id
                    assert await status_of(raw, *asked) == pb.STATUS_BAD_REQUEST, name
            torn = add(OWN_LEDGER, 0)
            torn.payload_crc32c ^= 1
            assert await status_of(raw, "AddStream", torn, pb.AddResponse) == pb.STATUS_BAD_CHECKSUM
            foreign = add(OWN_LEDGER, 0)
            foreign.ledger_id += 1
            found = await status_of(raw, "AddStream", foreign, pb.AddResponse)
            assert found == pb.STATUS_BAD_REQUEST
            count += 1
        on.note(f"{24 * count} refused")


SEEDS: Mapping[str, Any] = {
    "Read": read(OWN_LEDGER),
    "Fence": pb.FenceRequest(ledger_id=OWN_LEDGER, master_key=KEY),
    "ReadLac": pb.ReadLacRequest(ledger_id=OWN_LEDGER, master_key=KEY),
    "WriteLac": pb.WriteLacRequest(
        ledger_id=OWN_LEDGER, master_key=KEY, lac_packet=lac_of(OWN_LEDGER)
    ),
    "Force": pb.ForceRequest(ledger_id=OWN_LEDGER),
    "GetInfo": pb.GetInfoRequest(),
    "ListEntries": pb.ListEntriesRequest(ledger_id=OWN_LEDGER, last_entry_id=-1),
    "ListLedgers": pb.ListLedgersRequest(after_ledger_id=-1),
    "AddStream": add(OWN_LEDGER, 1),
    "ReadStream": read(OWN_LEDGER),
    "WatchLac": pb.WatchLacRequest(subscribe=[OWN_LEDGER]),
}
"""A valid request of each call, to be damaged."""


def damaged(rng: random.Random, data: bytes) -> bytes:
    """A few bytes changed, cut off, repeated or put in."""
    out = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(4):
            case 0:
                out[at : at + 1] = rng.randbytes(1)
            case 1:
                del out[at : at + rng.randrange(8)]
            case 2:
                out[at:at] = rng.randbytes(rng.randrange(8))
            case _:
                out[at:at] = out[: rng.randrange(40)]
    return bytes(out)


def test_each_call_has_a_seed() -> None:
    """A new call is damaged, too."""
    assert set(SEEDS) == {name.split()[0] for name in CALLS} - {"health"}


@pytest.mark.timeout(1800)
async def test_damaged_requests(target: Target, record_property: Tell, is_soak: bool) -> None:
    """Each gets an answer in band, and none an answer that the honest client would notice."""
    rng, each = random.Random(7), 10_000 if is_soak else 500
    async with target.under_attack("damaged requests", record_property) as on, target.raw() as raw:
        await prepare(raw, [OWN_LEDGER])
        for rpc, seed in SEEDS.items():
            data, path = seed.SerializeToString(), f"/{SERVICE}/{rpc}"
            if rpc in ("AddStream", "ReadStream", "WatchLac"):
                call = raw.channel.stream_stream(path)(metadata=raw.metadata)
                for _ in range(each):
                    await call.write(damaged(rng, data))
                    if rpc != "WatchLac":  # an update comes for what is watched alone
                        assert await call.read()
                call.cancel()
            else:
                ask = raw.channel.unary_stream(path)
                for _ in range(each):
                    _ = [page async for page in ask(damaged(rng, data), metadata=raw.metadata)]
        on.note(f"{each * len(SEEDS)} sent")


@pytest.mark.parametrize("bookie_id", ["../../x", "/x", "..", "a/b", "a\0b", ""])
async def test_ids_of_bookies_that_lead_elsewhere(tmp_path: Path, bookie_id: str) -> None:
    """Settings with such an id are refused before anything is made."""
    home = await new_home(tmp_path)
    home.sections["bookie"] = {"id": bookie_id}
    status, sentence = await refused(home.write())
    assert status != 0
    assert "bookie.id" in sentence
    assert not home.journal.exists()
    assert not home.ledgers.exists()
