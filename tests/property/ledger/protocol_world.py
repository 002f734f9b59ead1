"""A world in memory for protocol machines: bookies, a network, a metadata store, and an adversary.

Everything that is on its way lies in a queue; a seeded random chooses what happens next: deliver
something, lose it, break a stream, crash a bookie, fire a timer whether or not it is due. Nothing
depends on time, so every schedule that a real network could produce can come up.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from bookie.entry.batch import EntryBatch
from bookie.entry.digest import DigestType, digester_for_key
from bookie.entry.entry import parse_header
from bookie.errors import BookieError, MetadataUnavailableError
from bookie.ids import NO_ENTRY, Status
from bookie.ledger.exchange import (
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    TimerId,
)
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.ledger.quorum import Quorum, Stripe
from tests.entry_batches import merged
from tests.property.ledger.protocol_faults import Faults

DIGESTER = digester_for_key(DigestType.CRC32C, b"")
LEDGER_ID = 7

T = TypeVar("T")
MetadataAnswer = MetadataRead | MetadataWritten | MetadataConflict | MetadataFailed


class ViolationError(AssertionError):
    """A rule of the protocol was broken."""


def require(condition: object, rule: str) -> None:
    """Raise `ViolationError` unless the rule holds."""
    if not condition:
        raise ViolationError(rule)


@dataclass
class ReadResult:
    """A bookie's answer to a read, before verification."""

    status: Status
    packets: list[tuple[int, bytes]] = field(default_factory=list)
    next_entry_id: int = NO_ENTRY
    stopped_by: Status = Status.OK


class SimBookie:
    """One bookie: a dictionary, a fence, and what would be lost by a crash.

    A bookie that loses its disk, or gets an older state of it back, has another incarnation and is
    in limbo when it comes up. Both are attributes, for mutants to get wrong.
    """

    renews = True
    """True if it has another incarnation after a loss."""
    suspects = True
    """True if it is in limbo after a loss."""
    compares = True
    """True if it refuses callers that mean another incarnation."""
    fences = False
    """True if it fences the ledger after a loss."""
    unreadable_status = Status.IO_ERROR
    """Its answer about an entry that it stores and cannot read."""

    def __init__(self, bookie_id: str, world: World) -> None:
        self.bookie_id = bookie_id
        self.world = world
        self.up = True
        self.gone = False
        """It never comes up again."""
        self.silent = False
        """Requests to it are never answered now, not even by a timeout."""
        self.read_only = False
        self.leaving = False
        """It was told to stop, and answers SHUTTING_DOWN until it is down."""
        self.fenced = False
        self.entries: dict[int, bytes] = {}
        self.unsynced: set[int] = set()
        self.explicit_lac = NO_ENTRY
        self.denied: set[int] = set()
        """Ids denied on a fencing read (I12)."""
        self.incarnation = 0
        self.limbo = False
        self.unreadable: set[int] = set()
        """Entries that are stored, and whose bytes cannot be read."""
        self.destroyed: dict[int, bytes] = {}
        """Entries that were durable here and are gone."""
        self._older: tuple[dict[int, bytes], bool] = ({}, False)
        """Entries and fence of a copy of the disk."""

    def add(
        self,
        packets: list[tuple[int, bytes]],
        *,
        recovery: bool,
        deferred: bool,
        incarnation: int,
    ) -> Status:
        """Store packets or refuse them all."""
        if self.leaving:
            return Status.SHUTTING_DOWN
        if self.world.is_busy():
            return Status.TOO_MANY_REQUESTS
        if self.compares and incarnation != self.incarnation:
            return Status.WRONG_INCARNATION
        if self.fenced and not recovery:
            return Status.FENCED
        if self.read_only and not recovery:
            return Status.READ_ONLY
        for entry_id, packet in packets:
            header = parse_header(packet)
            require(header.entry_id == entry_id, "I4: a packet arrived under another id")
            require(
                header.last_add_confirmed <= self.world.acknowledged,
                f"I15: entry {entry_id} carries LAC {header.last_add_confirmed}, "
                f"but only {self.world.acknowledged} was acknowledged",
            )
            known = self.entries.get(entry_id)
            require(known is None or known == packet, f"I14: two bodies for entry {entry_id}")
            require(recovery or entry_id not in self.denied, f"I12: entry {entry_id} was denied")
        for entry_id, packet in packets:
            if entry_id not in self.entries:
                self.entries[entry_id] = packet
                if deferred:
                    self.unsynced.add(entry_id)
            elif not deferred:
                self.unsynced.discard(entry_id)
        return Status.OK

    def write_lac(self, lac: int) -> Status:
        """Take an explicit LAC."""
        require(lac <= self.world.acknowledged, "I15: explicit LAC beyond what was acknowledged")
        if self.leaving:
            return Status.SHUTTING_DOWN
        if self.fenced:
            return Status.FENCED
        self.explicit_lac = max(self.explicit_lac, lac)
        return Status.OK

    def fence(self) -> tuple[Status, bytes | None, int]:
        """Fence; the last packet and the explicit LAC."""
        if self.leaving:
            return Status.SHUTTING_DOWN, None, NO_ENTRY
        self.fenced = True
        if self.limbo:
            return Status.UNKNOWN_LEDGER_STATE, None, NO_ENTRY
        last = self.entries[max(self.entries)] if self.entries else None
        return Status.OK, last, self.explicit_lac

    def read(self, first: int, last: int, stripe: Stripe, limit: int, *, fence: bool) -> ReadResult:
        """Consecutive wanted ids, never skipping a hole."""
        if self.leaving:
            return ReadResult(Status.SHUTTING_DOWN)
        if fence:
            self.fenced = True
        found: list[tuple[int, bytes]] = []
        entry_id = stripe.next_id(first)
        stopped_by = Status.OK
        while entry_id <= last and len(found) < limit:
            packet = self.entries.get(entry_id)
            if entry_id in self.unreadable:
                stopped_by = self.unreadable_status
                break
            if packet is None:
                stopped_by = Status.NO_SUCH_ENTRY
                if self.limbo:
                    stopped_by = Status.UNKNOWN_LEDGER_STATE
                elif fence:
                    self.denied.add(entry_id)
                break
            found.append((entry_id, packet))
            entry_id = stripe.next_id(entry_id + 1)
        if not found:
            return ReadResult(stopped_by)
        return ReadResult(Status.OK, found, entry_id, stopped_by)

    def lac(self) -> int:
        """The highest LAC that a packet here proves."""
        carried = [parse_header(packet).last_add_confirmed for packet in self.entries.values()]
        return max([self.explicit_lac, *carried])

    def force(self) -> Status:
        """Sync everything."""
        if self.leaving:
            return Status.SHUTTING_DOWN
        self.unsynced.clear()
        return Status.OK

    def crash(self) -> None:
        """Lose what was not synced."""
        self.up = self.leaving = False
        for entry_id in self.unsynced:
            del self.entries[entry_id]
        self.unsynced.clear()

    def copy_disk(self) -> None:
        """Keep a copy of what is durable."""
        durable = {e: packet for e, packet in self.entries.items() if e not in self.unsynced}
        self._older = durable, self.fenced

    def lose_disk(self, kind: str) -> None:
        """The disk is empty, an older copy of itself, or half of it is gone; it is not running."""
        before = self.entries
        match kind:
            case "empty":
                self.entries, self.fenced = {}, False
            case "older":
                entries, self.fenced = self._older
                self.entries = {**entries}
            case _:
                rng = self.world.rng
                self.entries = {e: packet for e, packet in before.items() if rng.random() < 0.5}
                self.fenced = False
        self.explicit_lac = NO_ENTRY
        self.destroyed |= {e: p for e, p in before.items() if e not in self.entries}
        self.incarnation += self.renews
        # It lists the ledgers that name it, so it does not suspect one that will.
        fragments = self.world.store.metadata.fragments
        is_named = any(self.bookie_id in fragment.bookies for fragment in fragments)
        self.limbo = self.limbo or (self.suspects and is_named)
        self.fenced = self.fenced or self.fences


class Store:
    """One ledger's metadata under compare-and-set; the state machine of I10 is checked."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        self.version = 0

    def read(self) -> MetadataAnswer:
        """The metadata as it stands."""
        return MetadataRead(self.metadata, self.version)

    def write(self, metadata: LedgerMetadata, version: int) -> MetadataAnswer:
        """Compare and set."""
        if version != self.version:
            return MetadataConflict()
        before, after = self.metadata.state, metadata.state
        allowed = {
            LedgerState.OPEN: {LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED},
            LedgerState.IN_RECOVERY: {LedgerState.IN_RECOVERY, LedgerState.CLOSED},
            LedgerState.CLOSED: set[LedgerState](),
        }
        require(after in allowed[before], f"I10: {before.name} -> {after.name}")
        firsts = [fragment.first_entry_id for fragment in metadata.fragments]
        require(firsts == sorted(set(firsts)), "I5: first ids of fragments must increase")
        self.metadata = metadata
        self.version += 1
        return MetadataWritten(self.version)


class Call:
    """A request that gets exactly one answer, or is lost and then answered by a timeout."""

    def __init__(self, serve: Callable[[], object], reply: Callable[[object], None]) -> None:
        self.serve = serve
        self.reply = reply
        self.result: object = None
        self.served = False
        self.slow = False


class Stream:
    """Adds from one client to one bookie, in order; breaking it loses what is on its way."""

    def __init__(self, bookie: SimBookie, on_answer: Callable[[object], None]) -> None:
        self.bookie = bookie
        self.incarnation = bookie.incarnation
        """The bookie's when the client learnt it."""
        self.on_answer = on_answer
        self.is_open = False
        self.slow = False
        self.requests: deque[tuple[Callable[[], Status], object]] = deque()
        self.answers: deque[object] = deque()


class World:
    """Bookies, the store, everything on its way, and the clients."""

    def __init__(
        self,
        seed: int,
        sizes: tuple[int, int, int],
        faults: Faults,
        bookie: type[SimBookie] = SimBookie,
        spares: int = 0,
    ) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.faults = faults
        self.quorum = Quorum(*sizes)
        names = tuple(f"b{i}" for i in range(sizes[0]))
        every = [f"b{i}" for i in range(sizes[0] + spares)]
        self.bookies = {name: bookie(name, self) for name in every}
        metadata = LedgerMetadata(
            ledger_id=LEDGER_ID,
            ensemble_size=sizes[0],
            write_quorum_size=sizes[1],
            ack_quorum_size=sizes[2],
            state=LedgerState.OPEN,
            fragments=(Fragment(0, names[: sizes[0]]),),
            digest_type=DigestType.CRC32C,
        )
        self.store = Store(metadata)
        self.calls: list[Call] = []
        self.streams: list[Stream] = []
        self.zombies: list[tuple[SimBookie, Callable[[], object]]] = []
        """Requests whose client has given up on them; they may still arrive."""
        self.timers: dict[tuple[object, TimerId], Callable[[], None]] = {}
        self.acknowledged = NO_ENTRY
        """The highest entry that the writer has acknowledged."""
        self.payloads: dict[int, bytes] = {}
        """The writer's payload for each id."""
        self.lacs_seen: list[int] = []
        self.calm = False
        """Nothing goes wrong any more."""
        self.losses_left = sizes[2] - 1
        self.losses = 0
        self.writes: list[tuple[LedgerMetadata, int]] = []
        """Compare-and-sets on their way, each with the version that it expects."""
        self.late_writes: list[Callable[[], object]] = []
        """Those whose client got no answer, and which may still arrive."""
        self.changes = 0
        """Ensemble changes that took place."""
        self.newcomers = 0
        """Number of slots that bookies took over."""

    # -- what clients do -------------------------------------------------------------------------

    def call(
        self,
        bookie_id: str,
        serve: Callable[[SimBookie], object],
        reply: Callable[[object], None],
    ) -> None:
        """Send a request to a bookie; `reply` gets its result, or None when there is no answer."""
        bookie = self.bookies[bookie_id]
        if bookie.silent:
            return
        call = Call(lambda: serve(bookie) if bookie.up else None, reply)
        call.slow = self.rng.random() < self.faults.slow
        self.calls.append(call)

    def metadata_call(
        self, serve: Callable[[], T], reply: Callable[[T | MetadataFailed], None]
    ) -> None:
        """Ask the metadata store."""

        def on_result(result: object) -> None:
            failed: BookieError = MetadataUnavailableError("no answer")
            answer = MetadataFailed(failed) if result is None else result
            reply(answer)  # type: ignore[arg-type]

        def serve_or_fail() -> object:
            if not self.calm and self.rng.random() < self.faults.fail_metadata:
                if self.rng.random() < 0.5:
                    serve()
                return None
            return serve()

        self.calls.append(Call(serve_or_fail, on_result))

    def write_metadata(
        self, metadata: LedgerMetadata, version: int, reply: Callable[[MetadataAnswer], None]
    ) -> None:
        """Compare and set; without an answer it was done, or will be, or never arrives."""
        self.check_acknowledged(metadata, version)
        write = metadata, version
        self.writes.append(write)

        def arrive() -> MetadataAnswer:
            self.writes.remove(write)
            before = self.store.metadata.last_fragment
            answer = self.store.write(metadata, version)
            self.changes += self.store.metadata.last_fragment != before
            return answer

        def serve() -> MetadataAnswer | None:
            if not self.calm and self.rng.random() < self.faults.fail_metadata:
                match self.rng.randrange(3):
                    case 0:
                        arrive()
                    case 1:
                        self.late_writes.append(arrive)
                    case _:
                        self.writes.remove(write)
                return None
            return arrive()

        def on_result(result: object) -> None:
            failed: BookieError = MetadataUnavailableError("no answer")
            answer = MetadataFailed(failed) if result is None else result
            reply(answer)  # type: ignore[arg-type]

        self.calls.append(Call(serve, on_result))

    def possible_metadata(self) -> list[LedgerMetadata]:
        """Every version of the metadata that the store holds or may hold after one more arrival."""
        arriving = [metadata for metadata, version in self.writes if version == self.store.version]
        return [self.store.metadata, *arriving]

    def check_acknowledged(self, metadata: LedgerMetadata, version: int) -> None:
        """Metadata that may come into force names an ack quorum of holders of every entry (I3)."""
        if version != self.store.version:
            return
        for entry_id in range(self.acknowledged + 1):
            names = metadata.fragment_of(entry_id).bookies
            members = [self.bookies[names[slot]] for slot in self.quorum.write_set(entry_id)]
            holders = [b for b in members if entry_id in b.entries or entry_id in b.destroyed]
            require(
                len(holders) >= self.quorum.ack_quorum_size,
                f"I3: metadata on its way names {len(holders)} holders of entry {entry_id}, "
                "which was acknowledged",
            )

    def open_stream(self, bookie_id: str, on_answer: Callable[[object], None]) -> Stream:
        """A stream that the network will connect."""
        stream = Stream(self.bookies[bookie_id], on_answer)
        stream.slow = self.rng.random() < self.faults.slow
        self.streams.append(stream)
        return stream

    # -- what the adversary does -----------------------------------------------------------------

    def deliver_one(self) -> bool:
        """Move one thing on its way a step further; False when there is none."""
        ready: list[Stream | Call] = [s for s in self.streams if s.requests or s.answers]
        ready += self.calls
        if self.rng.random() < 0.97:
            ready = [one for one in ready if not one.slow] or ready
        if (self.zombies and self.rng.random() < 0.1) or not ready:
            return self._deliver_zombie()
        chosen = self.rng.choice(ready)
        if isinstance(chosen, Stream):
            self._advance_stream(chosen)
        elif not chosen.served:
            chosen.result, chosen.served = chosen.serve(), True
        else:
            self.calls.remove(chosen)
            chosen.reply(chosen.result)
        return True

    def _deliver_zombie(self) -> bool:
        if not self.zombies:
            return False
        bookie, serve = self.zombies.pop(self.rng.randrange(len(self.zombies)))
        if bookie.up:
            serve()
        return True

    def _advance_stream(self, stream: Stream) -> None:
        if stream.requests and (not stream.answers or self.rng.random() < 0.5):
            serve, tag = stream.requests.popleft()
            if stream.bookie.up:
                stream.answers.append((serve(), tag))
        else:
            stream.on_answer(stream.answers.popleft())

    def break_stream(self, stream: Stream) -> None:
        """Lose what is on its way; requests may still arrive, answers are gone."""
        for serve, _ in stream.requests:
            if stream.bookie.up and self.rng.random() < 0.5:
                self.zombies.append((stream.bookie, serve))
        stream.requests.clear()
        stream.answers.clear()
        if stream.is_open:
            stream.is_open = False
            stream.on_answer("disconnected")

    def connect_stream(self, stream: Stream) -> None:
        """Open a stream anew, unless the bookie is not the one that was meant."""
        if not stream.is_open and stream.bookie.up:
            if stream.bookie.compares and stream.incarnation != stream.bookie.incarnation:
                stream.on_answer("lost")
                return
            stream.is_open = True
            stream.on_answer("connected")

    def crash_bookie(self, bookie: SimBookie) -> None:
        """A bookie dies; what it synced stays."""
        bookie.crash()
        for stream in self.streams:
            if stream.bookie is bookie:
                self.break_stream(stream)

    def lose_bookie(self, *, silent: bool) -> None:
        """One bookie of the ensemble is gone for good; an ack quorum must survive that."""
        assert self.losses_left > 0
        self.losses_left -= 1
        bookie = self.bookies[f"b{self.rng.randrange(self.quorum.ensemble_size)}"]
        bookie.gone, bookie.silent = True, silent
        self.crash_bookie(bookie)

    def disturb(self) -> None:
        """Perhaps something goes wrong, or comes back."""
        rng, faults = self.rng, self.faults
        if self.calls and rng.random() < faults.lose_call:
            call = self.calls.pop(rng.randrange(len(self.calls)))
            if not call.served and rng.random() < 0.5:
                call.serve()
            call.reply(None)
        if self.streams:
            stream = rng.choice(self.streams)
            if stream.is_open and rng.random() < faults.break_stream:
                self.break_stream(stream)
            elif not stream.is_open and rng.random() < 0.2:
                self.connect_stream(stream)
            if rng.random() < 0.1:
                stream.slow = rng.random() < faults.slow
        bookie = self.bookies[rng.choice(list(self.bookies))]
        self._disturb_bookie(bookie)
        if rng.random() < faults.fire_timer:
            self.fire_a_timer()
        if self.late_writes and rng.random() < 0.1:
            self.late_writes.pop(rng.randrange(len(self.late_writes)))()
        if rng.random() < 0.05:
            self.lacs_seen.append(bookie.lac())

    def _disturb_bookie(self, bookie: SimBookie) -> None:
        rng, faults = self.rng, self.faults
        if not bookie.up:
            bookie.up = rng.random() < 0.1 and not bookie.gone
        elif self.losses_left and rng.random() < faults.kill_bookie:
            self.losses_left -= 1
            bookie.gone = True
            self.crash_bookie(bookie)
        elif rng.random() < (0.2 if bookie.leaving else faults.crash_bookie):
            self.crash_bookie(bookie)
        elif rng.random() < faults.leave:
            bookie.leaving = True
        elif faults.lose_disk and self._disturb_disk(bookie):
            pass
        elif bookie.read_only or rng.random() < faults.read_only:
            bookie.read_only = not bookie.read_only and rng.random() < 0.5

    def _disturb_disk(self, bookie: SimBookie) -> bool:
        """Perhaps a disk is lost, or copied; whether it was."""
        rng = self.rng
        if self.losses_left and rng.random() < self.faults.lose_disk:
            self.losses_left -= 1
            self.losses += 1
            self.crash_bookie(bookie)
            bookie.lose_disk(rng.choice(["empty", "older", "half"]))
            return True
        copied = rng.random() < 0.05
        if copied:
            bookie.copy_disk()
        return copied

    def is_busy(self) -> bool:
        """True if a bookie refuses an add because it has too many."""
        return not self.calm and self.rng.random() < self.faults.busy

    def fire_a_timer(self) -> bool:
        """Fire some timer, due or not."""
        if not self.timers:
            return False
        key = self.rng.choice(list(self.timers))
        self.timers.pop(key)()
        return True

    def heal(self) -> None:
        """From now on everything works."""
        self.calm = True
        for arrive in self.late_writes:
            arrive()
        self.late_writes.clear()
        for bookie in self.bookies.values():
            if bookie.leaving:
                self.crash_bookie(bookie)
            bookie.up, bookie.read_only = not bookie.gone, False
        for stream in self.streams:
            self.connect_stream(stream)


def batch_of(packets: list[tuple[int, bytes]]) -> EntryBatch:
    """A batch of these packets, whose ids ascend."""
    return merged(
        [
            EntryBatch(LEDGER_ID, entry_id, None, np.array([len(packet)]), packet)
            for entry_id, packet in packets
        ]
    )
