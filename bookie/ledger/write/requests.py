"""Encodes add requests; a request that several bookies get is packed and encoded only once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bookie.entry.batch import EntryBatch
from bookie.entry.checksum import crc32c
from bookie.entry.digest import digester_for_key
from bookie.entry.entry import SharedPrefix, pack_batch, pack_lac
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.quorum import Quorum, slots_of
from bookie.ledger.striping import select
from bookie.ledger.write.writer_events import SendBatch
from bookie.wire.codec import encode_add_request

Request = tuple[int, bytes]
"""A request id and the wire bytes of the request that carries it."""


class RequestEncoder:
    """Creates the requests of one ledger's writer or recovery."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        quorum: Quorum,
        next_request_id: Callable[[], int],
        *,
        deferred_sync: bool = False,
    ) -> None:
        self.digester = digester_for_key(metadata.digest_type, metadata.password_key)
        self._ledger_id = metadata.ledger_id
        self._key = metadata.password_key
        self._quorum = quorum
        self._next_request_id = next_request_id
        self._deferred_sync = deferred_sync

    def batch(
        self, plan: SendBatch, payloads: Sequence[bytes], shared: Sequence[SharedPrefix]
    ) -> dict[int, Request]:
        """Create one request for each slot that stores entries; equal requests share one object."""
        first, count = plan.first_entry_id, plan.count
        batch = pack_batch(
            self._ledger_id,
            first,
            plan.last_add_confirmed,
            plan.length_before,
            payloads,
            self.digester,
            shared,
        )
        quorum = self._quorum
        whole: Request | None = None
        requests: dict[int, Request] = {}
        for slot in slots_of(quorum.slots_for(quorum.classes_in(first, count))):
            part = select(batch, quorum.stripe_of(slot))
            assert part is not None
            if part is batch:
                whole = whole or self.entries(batch)
                requests[slot] = whole
            else:
                requests[slot] = self.entries(part)
        return requests

    def entries(self, batch: EntryBatch, *, recovery: bool = False) -> Request:
        request_id = self._next_request_id()
        return request_id, encode_add_request(
            request_id,
            self._ledger_id,
            batch,
            master_key=self._key,
            payload_crc32c=crc32c(batch.payload),
            recovery=recovery,
            deferred_sync=self._deferred_sync,
        )

    def lac(self, last_add_confirmed: int) -> Request:
        """Create a request that publishes the LAC, without entries."""
        request_id = self._next_request_id()
        packet = pack_lac(self._ledger_id, last_add_confirmed, self.digester)
        return request_id, encode_add_request(
            request_id, self._ledger_id, None, master_key=self._key, lac_packet=packet
        )
