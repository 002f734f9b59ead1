"""What clients of one bookie were promised, and clients that keep the list while they ask.

A request is on the list before it is sent, as something that may have happened. It becomes
something that did happen when its answer exists, even before a client hears it. A promise is kept
by ledger:

===========  ===================================================================================
field        meaning
===========  ===================================================================================
stored       acknowledged and durable: present with exactly these bytes
written      acknowledged as deferred, not forced: survives a kill, may be lost with the power
tried        sent: absent, or exactly these bytes
===========  ===================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from crc32c import crc32c

from bookie.entry.batch import EntryBatch
from bookie.entry.digest import DigestType, digester_for_key
from bookie.entry.entry import pack_batch, pack_lac
from bookie.ids import NO_ENTRY, Status
from bookie.node.engine.admission import Waiter
from bookie.node.engine.engine import Engine
from bookie.wire.commands import AddCommand, Reply
from tests.entry_batches import merged

DIGESTER = digester_for_key(DigestType.CRC32C, b"")
KEY = b"key of the ledger"
OTHER_KEY = b"key of another ledger"
NO_LAC = NO_ENTRY - 1
OK = Status.OK


@dataclass(slots=True)
class LedgerPromise:
    """See the module. Of `fenced`, `limbo` and `deleted` every value that may be found is there."""

    stored: dict[int, bytes] = field(default_factory=dict)
    written: dict[int, bytes] = field(default_factory=dict)
    tried: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    fenced: tuple[bool, ...] = (False,)
    limbo: tuple[bool, ...] = (False,)
    deleted: tuple[bool, ...] = (False,)
    lac_durable: int = NO_LAC
    lac_max: int = NO_LAC

    def copy(self) -> LedgerPromise:
        """A promise that stays as it is now."""
        return LedgerPromise(
            dict(self.stored),
            dict(self.written),
            dict(self.tried),
            self.fenced,
            self.limbo,
            self.deleted,
            self.lac_durable,
            self.lac_max,
        )

    def allowed(self, entry_id: int) -> tuple[bytes, ...]:
        """The bytes that may be found under an id."""
        certain = self.written.get(entry_id) or self.stored.get(entry_id)
        found = self.tried.get(entry_id, ())
        if certain is not None:
            found = (*found, certain)
        if entry_id in self.written and entry_id in self.stored:
            found = (*found, self.stored[entry_id])
        return found

    def try_entries(self, packets: dict[int, bytes]) -> None:
        """Somebody sends entries."""
        for entry_id, packet in packets.items():
            self.tried[entry_id] = (*self.tried.get(entry_id, ()), packet)

    def settle_entries(self, packets: dict[int, bytes], outcome: str) -> None:
        """They were answered: ``stored``, ``written`` or ``refused``."""
        for entry_id, packet in packets.items():
            others = list(self.tried.get(entry_id, ()))
            if packet in others:
                others.remove(packet)
            if others:
                self.tried[entry_id] = tuple(others)
            else:
                self.tried.pop(entry_id, None)
            if outcome == "stored":
                self.stored[entry_id] = packet
                self.written.pop(entry_id, None)
            elif outcome == "written" and self.stored.get(entry_id) != packet:
                self.written[entry_id] = packet


Frozen = dict[int, LedgerPromise]


class Promises:
    """All ledgers of one bookie."""

    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerPromise] = {}
        self._open: list[tuple[Waiter, Callable[[Reply], None]]] = []
        self._frozen: Frozen = {}
        self._changed: set[int] = set()
        self.version = 0

    def of(self, ledger_id: int) -> LedgerPromise:
        """The promise about one ledger, to be changed."""
        self._changed.add(ledger_id)
        self.version += 1
        return self.ledgers.setdefault(ledger_id, LedgerPromise())

    def expect(self, waiter: Waiter, answered: Callable[[Reply], None]) -> None:
        """Have `answered` change the promises as soon as the answer exists."""
        self._open.append((waiter, answered))

    def frozen(self) -> Frozen:
        """The promises at this moment; they share what did not change."""
        self.look()
        if self._changed:
            self._frozen = dict(self._frozen)
            for ledger_id in sorted(self._changed):
                self._frozen[ledger_id] = self.ledgers[ledger_id].copy()
            self._changed.clear()
        return self._frozen

    def look(self) -> None:
        """Take note of the answers that exist by now, in the order of the requests."""
        waiting = []
        for waiter, answered in self._open:
            if not waiter.done():
                waiting.append((waiter, answered))
            else:
                answered(waiter.result())
        self._open = waiting

    def lose_power(self) -> None:
        """What was only written is not promised any more."""
        for ledger_id, promise in list(self.ledgers.items()):
            if promise.written:
                changed = self.of(ledger_id)
                changed.try_entries(changed.written)
                changed.written = {}

    def stop_in_order(self) -> None:
        """The process stopped in order: everything that was acknowledged is durable."""
        self.look()
        for ledger_id in list(self.ledgers):
            promise = self.of(ledger_id)
            promise.settle_entries(dict(promise.written), "stored")
            promise.lac_durable = promise.lac_max

    def forget_requests(self) -> None:
        """The process is gone, and with it whoever would have answered."""
        self.look()
        self._open.clear()


def body(ledger_id: int, entry_id: int, size: int, salt: int) -> bytes:
    """The payload of an entry: it says what it is."""
    text = f"{ledger_id}/{entry_id}/{salt}:".encode()
    return (text * (size // len(text) + 1))[: max(size, len(text))]


def entries_of(ledger_id: int, ids: Iterable[int], size: int, salt: int) -> EntryBatch:
    """A batch of packets, ids ascending."""
    pieces = [
        pack_batch(ledger_id, item, item - 1, 0, [body(ledger_id, item, size, salt)], DIGESTER)
        for item in ids
    ]
    return merged(pieces)


def packets_of(batch: EntryBatch) -> dict[int, bytes]:
    """Id → packet."""
    offsets = batch.offsets().tolist()
    data = bytes(batch.payload)
    return {
        entry_id: data[offsets[index] : offsets[index + 1]]
        for index, entry_id in enumerate(batch.entry_ids().tolist())
    }


class Client:
    """Sends requests to an engine as the node does, and keeps the list."""

    def __init__(self, engine: Engine, promises: Promises) -> None:
        self.engine = engine
        self.promises = promises

    async def add(
        self,
        ledger_id: int,
        ids: Iterable[int],
        *,
        size: int = 40,
        salt: int = 0,
        recovery: bool = False,
        deferred: bool = False,
        lac: int | None = None,
    ) -> Reply:
        """Add entries; the answer."""
        engine = self.engine
        batch = entries_of(ledger_id, ids, size, salt)
        packet = b"" if lac is None else pack_lac(ledger_id, lac, DIGESTER)
        state = await engine.load(ledger_id)
        state.users += 1
        try:
            if not recovery and state.may_hold(batch):
                return await self._add_again(ledger_id, batch, deferred=deferred)
            refusal = engine.refusal(state, KEY, recovery=recovery)
            if refusal is not None:
                return refusal
            packets = packets_of(batch)
            promise = self.promises.of(ledger_id)
            promise.try_entries(packets)
            if lac is not None:
                promise.lac_max = max(promise.lac_max, lac)
            command = AddCommand(
                batch,
                ledger_id,
                KEY,
                crc32c(batch.payload),
                recovery=recovery,
                deferred_sync=deferred,
                lac_packet=packet,
            )
            waiter = engine.add(state, command, NO_ENTRY)
            synced = recovery or not deferred

            def answered(reply: Reply) -> None:
                outcome = _outcome(reply, synced=synced)
                if outcome:
                    self.promises.of(ledger_id).settle_entries(packets, outcome)

            self.promises.expect(waiter, answered)
            return await waiter
        finally:
            state.users -= 1

    async def _add_again(self, ledger_id: int, batch: EntryBatch, *, deferred: bool) -> Reply:
        packets = packets_of(batch)
        self.promises.of(ledger_id).try_entries(packets)
        state = await self.engine.load(ledger_id)
        crc = crc32c(batch.payload)
        command = AddCommand(batch, ledger_id, KEY, crc, deferred_sync=deferred)
        reply = await self.engine.add_over_stored(state, command, NO_ENTRY)
        outcome = _outcome(reply, synced=not deferred)
        if outcome:
            self.promises.of(ledger_id).settle_entries(packets, outcome)
        return reply

    async def fence(self, ledger_id: int) -> Reply:
        """Fence a ledger, known or not."""
        state = await self.engine.load(ledger_id)
        if state.deleted:
            return Reply(Status.NO_SUCH_LEDGER)
        promise = self.promises.of(ledger_id)
        if promise.fenced == (False,):
            promise.fenced = (False, True)
        waiter = self.engine.fence(state, KEY)

        def answered(reply: Reply) -> None:
            if reply.status is OK:
                self.promises.of(ledger_id).fenced = (True,)

        self.promises.expect(waiter, answered)
        return await waiter

    async def limbo(self, ledger_id: int, *, on: bool) -> Reply:
        """Doubt begins, which fences, or ends."""
        state = await self.engine.load(ledger_id)
        # What the answer to an earlier request settles must not take this one away.
        self.promises.look()
        promise = self.promises.of(ledger_id)
        promise.limbo = (*promise.limbo, on)
        if on and promise.fenced == (False,):
            promise.fenced = (False, True)
        waiter = self.engine.set_limbo(state, in_limbo=on)

        def answered(reply: Reply) -> None:
            if reply.status is OK:
                settled = self.promises.of(ledger_id)
                settled.limbo = (on,)
                if on:
                    settled.fenced = (True,)

        self.promises.expect(waiter, answered)
        return await waiter

    async def delete(self, ledger_id: int) -> Reply:
        """The ledger is gone in the metadata."""
        state = await self.engine.load(ledger_id)
        self.promises.of(ledger_id).deleted = (False, True)
        now = self.engine._env.clock.now_ms()
        waiter = self.engine.delete(state, now)

        def answered(reply: Reply) -> None:
            if reply.status is OK:
                self.promises.of(ledger_id).deleted = (True,)

        self.promises.expect(waiter, answered)
        return await waiter

    async def publish_lac(self, ledger_id: int, lac: int) -> None:
        """An explicit LAC, for which nobody waits."""
        state = await self.engine.load(ledger_id)
        if state.deleted or state.fenced:
            return
        promise = self.promises.of(ledger_id)
        promise.lac_max = max(promise.lac_max, lac)
        self.engine.publish_lac(state, pack_lac(ledger_id, lac, DIGESTER), KEY)

    async def force(self) -> Reply:
        """Everything accepted so far becomes durable."""
        become_durable = self.all_accepted()
        waiter = self.engine.force()

        def answered(reply: Reply) -> None:
            if reply.status is OK:
                become_durable()

        self.promises.expect(waiter, answered)
        return await waiter

    async def checkpoint(self) -> None:
        """A checkpoint, after which everything that was accepted before is durable."""
        become_durable = self.all_accepted()
        await self.engine.checkpoint()
        become_durable()

    async def compact(self) -> None:
        """Move what is alive out of every file that holds anything dead."""
        await self.engine.compactor.round(force=True)

    def all_accepted(self) -> Callable[[], None]:
        """What to call once everything that was written before now is durable."""
        self.promises.look()
        written = {number: dict(item.written) for number, item in self.promises.ledgers.items()}
        lacs = {number: item.lac_max for number, item in self.promises.ledgers.items()}

        def become_durable() -> None:
            for number, packets in written.items():
                promise = self.promises.of(number)
                still = {
                    entry_id: packet
                    for entry_id, packet in packets.items()
                    if promise.written.get(entry_id) == packet
                }
                promise.settle_entries(still, "stored")
                promise.lac_durable = max(promise.lac_durable, lacs[number])

        return become_durable


def _outcome(reply: Reply, *, synced: bool) -> str:
    if reply.status is OK:
        return "stored" if synced else "written"
    if reply.status in (Status.FENCED, Status.READ_ONLY, Status.UNAUTHORIZED, Status.CONFLICT):
        return "refused"
    return ""
