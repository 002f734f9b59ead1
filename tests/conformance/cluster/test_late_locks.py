"""A lock of repair whose write takes effect after its worker has given up."""

from __future__ import annotations

import pytest

from bookie.cluster import keys
from bookie.env import SystemClock
from bookie.errors import MetadataUnavailableError
from bookie.ledger.copies.marks import LATE_SECONDS_MAX, UnderreplicationManager
from bookie.ledger.underreplicated import encode_lock
from bookie.metadata.model import NOT_EXISTS
from bookie.metadata.store import MetadataStore
from tests.conformance.faulty_store import FaultyStore


class LaterClock(SystemClock):
    """It may go forward at once."""

    later_seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.later_seconds


async def test_a_lock_that_comes_late_is_given_back(store: MetadataStore) -> None:
    """Its write took effect after its worker had given up, and had looked for it."""
    faulty, clock = FaultyStore(store), LaterClock()
    manager = UnderreplicationManager(faulty, "b1", clock)
    await manager.mark(7, ["b1"])
    faulty.lost_requests = 1
    with pytest.raises(MetadataUnavailableError):
        await manager.acquire(7)
    await manager.give_back_doubtful()
    key = f"{keys.REPAIR_LOCKS}/{7:019}"
    late = encode_lock("b1", manager._held[7].token)
    await store.put(key, late, version=NOT_EXISTS, ephemeral=True)
    await manager.give_back_doubtful()
    assert await store.get(key) is None
    faulty.lost_requests = 1
    with pytest.raises(MetadataUnavailableError):
        await manager.acquire(7)
    clock.later_seconds = LATE_SECONDS_MAX
    await manager.give_back_doubtful()
    reads = faulty.reads
    await manager.give_back_doubtful()
    assert faulty.reads == reads, "nothing is in doubt for ever"


async def test_a_lock_that_cannot_be_read_keeps_no_other(store: MetadataStore) -> None:
    """A worker of a newer version took one ledger; the worker that ends gives back the rest."""
    manager = UnderreplicationManager(store, "b1")
    for ledger_id in (7, 8):
        await manager.mark(ledger_id, ["b1"])
        assert await manager.acquire(ledger_id)
    taken, own = (f"{keys.REPAIR_LOCKS}/{ledger_id:019}" for ledger_id in (7, 8))
    await store.delete(taken)
    await store.put(taken, b"newer", version=NOT_EXISTS)
    await manager.close()
    assert await store.get(own) is None
    assert await store.get(taken) is not None
    await manager.close()
