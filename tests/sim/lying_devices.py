"""Random lives on devices that lose writes, put them elsewhere, or flip bits, and say nothing.

Nobody can promise what was acknowledged then. What remains is that a bookie is honest. An entry
comes back in one of three ways: with its bytes, with bytes that fail their digest, or as an I/O
error. It says "no such entry" only after the start has raised the alarm, which makes the node
answer "unknown". The one exception is the last block, if it was being written when the device lied:
it looks like a power cut.
"""

from __future__ import annotations

from dataclasses import replace

from bookie.entry.entry import lac_packet_ids, unpack_packet
from bookie.errors import ChecksumError
from bookie.ids import Status
from bookie.node.engine.engine import Engine
from bookie.node.engine.format.blocks import BLOCK_MAGIC, FILE_HEADER_SIZE_BYTES
from bookie.testing.simulation.disk import SimulatedDisk
from bookie.testing.simulation.machine import SimulatedMachine
from bookie.testing.simulation.platter import SECTOR, FileWrite
from tests.sim.observed import MIB, ids_of
from tests.sim.promises import DIGESTER, NO_LAC, Client, Frozen, LedgerPromise
from tests.sim.random_lives import LIES, Outcome, RandomLives, Swarm, draw, is_failure, is_lie

NOT_ON_LIARS = ("deferred", "force", "lac")
"""What is synced later is vouched for by nobody: a lie about it looks like a power cut."""


def swarm_of(seed: int) -> Swarm:
    """The features of a seed."""
    swarm = draw(seed, lies=True)
    actions = tuple(item for item in swarm.actions if item not in NOT_ON_LIARS) or ("add",)
    return replace(swarm, actions=actions)


PLACES = ("journal/", "journal/", "logs/")
"""Where a device lies to a bookie that works."""

ROTTEN = ("damaged", "zero", "older", "of another file")
"""What may stand in a sector in the place of what was written."""

WAYS_TO_LIE = (
    *(
        f"{kind} in {place}{when}"
        for kind in LIES
        for place in ("journal", "logs")
        for when in ("", " while starting")
    ),
    "misdirected into another file",
    *(f"sector {kind}" for kind in ROTTEN),
)
"""Each of them happens in one of the seeds that run by default."""

SHIFTS = (512, 1024, 4096, 20_480, 65_536, -512, -4096, -20_480)
"""How far from its place a misdirected write may land."""


class LyingLives(RandomLives):
    """See the module."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, swarm_of(seed))
        self.excused: set[tuple[int, int]] = set()
        """Ledger and entry id of what was in the block that the device lied about."""
        self.excused_ledgers: set[int] = set()
        self._armed_at_boot = 0
        """How many of a life's faults were armed before its start."""

    def run(self, lives: int) -> Outcome:
        """Live until the engine raises the alarm, at most `lives` times."""
        for number in range(lives + 1):
            self._live(number, last=number == lives)
            if self.outcome.reported:
                break
            if self.choose.random() < 0.3:
                self._rot()
        return self.outcome

    def _rot(self) -> None:
        """A sector goes bad at rest, or has again what stood there before."""
        disk = SimulatedMachine(self.left).disk
        paths = witnessed(disk)
        if not paths:
            return
        path = self.choose.choice(paths)
        inode = disk.inode_of(path)
        size = len(inode.data)
        if size < SECTOR:
            return
        at = self.choose.randrange(size // SECTOR) * SECTOR
        kind, sectors = self.choose.choice(list(self._rotten(disk, path, at).items()))
        new = self.choose.choice(sectors)
        disk.forgets(path, FileWrite(at, new))
        self.left = replace(self.left, image=disk.freeze())
        self.outcome.struck[f"sector {kind}"] += 1

    def _rotten(self, disk: SimulatedDisk, path: str, at: int) -> dict[str, list[bytes]]:
        """What a sector may have become, by kind; none of it is what it should be."""
        inode = disk.inode_of(path)
        now = bytes(inode.data[at : at + SECTOR])
        others = [disk.inode_of(other).durable for other in disk.paths() if other != path]
        older = [before[at : at + SECTOR].ljust(SECTOR, b"\0") for before in inode.earlier]
        foreign = [
            other[at : at + SECTOR]
            for other in (*others, *disk.image.former)
            if len(other) >= at + SECTOR
        ]
        found = ([now[::-1], self.choose.randbytes(SECTOR)], [bytes(SECTOR)], older, foreign)
        wrong = {
            kind: [item for item in items if item != now]
            for kind, items in zip(ROTTEN, found, strict=True)
        }
        return {kind: items for kind, items in wrong.items() if items}

    def _arm(self, machine: SimulatedMachine, *, booting: bool) -> None:
        choose, disk = self.choose, machine.disk
        # A start writes only the header of a journal, whose loss is harmless.
        disk.lied = _nothing if booting else self._excuse
        disk.lands_in = lambda path: self._lands_in(disk, path)
        for item in self.swarm.faults:
            part = choose.choice(("journal/", "logs/") if booting else PLACES)
            passes = choose.choice((0, 0, 1, 2) if booting else (0, 1, 3, 10, 30))
            disk.fail(item.call, part, item.kind, passes=passes, shift=choose.choice(SHIFTS))
        if booting:
            self._armed_at_boot = len(disk.faults)

    def _lands_in(self, disk: SimulatedDisk, path: str) -> str:
        """Where a misdirected write lands: often in the file that it is for."""
        paths = [other for other in witnessed(disk) if other != path]
        if not paths or self.choose.random() < 0.5:
            return path
        self.outcome.struck["misdirected into another file"] += 1
        return self.choose.choice(paths)

    def _live(self, number: int, *, last: bool) -> None:
        self._armed_at_boot = 0
        super()._live(number, last=last)

    def _count(self, machine: SimulatedMachine) -> None:
        struck = self.outcome.struck
        for number, fault in enumerate(machine.disk.faults):
            place = fault.part.strip("/")
            when = " while starting" if number < self._armed_at_boot else ""
            struck[f"{fault.kind} in {place}{when}"] += fault.struck

    def _excuse(self, path: str) -> None:
        """Whatever may be part of this write of a journal; a log is never written alone."""
        if "journal/" not in path:
            return
        for ledger_id, promise in self.promises.ledgers.items():
            self.excused.update((ledger_id, entry_id) for entry_id in promise.tried)
            if len(promise.fenced) > 1 or len(promise.limbo) > 1 or len(promise.deleted) > 1:
                self.excused_ledgers.add(ledger_id)

    def _go(self, machine: SimulatedMachine, *, last: bool) -> None:
        """Live until the end; that the engine gives up is no lie."""
        try:
            machine.die_after(self._look if last else lambda engine: self._work(engine, machine))
        except BaseException as error:
            if is_lie(error) or not (machine.disk.dead or is_failure(error)):
                raise AssertionError(f"seed {self.seed}, life {self.outcome.lives}") from error
            if not machine.disk.dead:
                self.outcome.reported += 1

    # --- what is checked -----------------------------------------------------------------

    async def _look(self, engine: Engine) -> None:
        if engine.report.corrupt or engine.needs_integrity_check:
            self.outcome.reported += 1
        for ledger_id, promise in self.promises.frozen().items():
            await self._check_ledger(engine, ledger_id, promise)

    async def _check_ledger(self, engine: Engine, ledger_id: int, promise: LedgerPromise) -> None:
        state = await engine.load(ledger_id)
        silent = not self.outcome.reported
        if silent and ledger_id not in self.excused_ledgers:
            assert state.deleted in promise.deleted, f"ledger {ledger_id}: {state.deleted}"
            assert state.deleted or state.fenced in promise.fenced or state.limbo
            assert state.deleted or state.limbo in promise.limbo
        if state.deleted:
            return
        ids = {*await ids_of(engine, state), *promise.stored, *promise.written}
        for entry_id in sorted(ids):
            packet = await self._read_one(engine, ledger_id, entry_id)
            excused = (ledger_id, entry_id) in self.excused
            if packet is None:
                lost = entry_id in promise.stored or (
                    entry_id in promise.written and not self.power
                )
                assert not (silent and lost and not excused), f"{ledger_id}/{entry_id} is denied"
            elif packet and is_whole(ledger_id, packet):
                payload = unpack_packet(ledger_id, entry_id, packet, DIGESTER)
                assert payload.startswith(f"{ledger_id}/{entry_id}/".encode())
                if silent and not excused:
                    # Else it may be the one that a recovery add replaced in what was lost.
                    assert packet in promise.allowed(entry_id), f"{ledger_id}/{entry_id} is old"

    async def _read_one(self, engine: Engine, ledger_id: int, entry_id: int) -> bytes | None:
        """An entry; None if it is denied, empty if it is unreadable."""
        state = await engine.load(ledger_id)
        result = await engine.read(state, entry_id, entry_id, entries_max=1, bytes_max=MIB)
        if result.batch is None:
            return None if result.stopped_by is Status.NO_SUCH_ENTRY else b""
        return bytes(result.batch.payload)

    async def _adopt(self, engine: Engine) -> Frozen:
        """What can be read is promised from now on; what cannot, stays promised as it was."""
        adopted: Frozen = {}
        for ledger_id, promise in self.promises.ledgers.items():
            state = await engine.load(ledger_id)
            kept = adopted[ledger_id] = LedgerPromise(
                fenced=(state.fenced,), limbo=(state.limbo,), deleted=(state.deleted,)
            )
            if not state.exists or state.deleted:
                continue
            packet = state.lac_packet
            kept.lac_durable = kept.lac_max = (
                lac_packet_ids(packet).last_add_confirmed if packet else NO_LAC
            )
            for entry_id in {*await ids_of(engine, state), *promise.stored}:
                found = await self._read_one(engine, ledger_id, entry_id)
                if found and is_whole(ledger_id, found):
                    kept.stored[entry_id] = found
                elif found is not None:
                    certain = promise.allowed(entry_id)
                    kept.stored[entry_id] = certain[0]
                    kept.tried[entry_id] = certain
        return adopted

    async def _read(self, client: Client, ledger_id: int, first: int) -> None:
        """Bytes that were flipped on the way are in the page cache, too; clients find out."""


def witnessed(disk: SimulatedDisk) -> list[str]:
    """Files of whose every block something else knows that it was durable.

    The newest journal with blocks on the device is left out, and so are those behind it: the last
    block may look torn. That of an older one is named by its successor's first.
    """
    paths = [path for path in disk.paths() if path.endswith((".journal", ".log"))]
    begun = [
        path
        for path in paths
        if path.endswith(".journal")
        and disk.inode_of(path).durable[FILE_HEADER_SIZE_BYTES:].startswith(BLOCK_MAGIC)
    ]
    newest = begun[-1] if begun else ""
    return [path for path in paths if path.endswith(".log") or path < newest]


def _nothing(_: str) -> None:
    """Nobody is excused."""


def is_whole(ledger_id: int, packet: bytes) -> bool:
    """Whether the digest of a packet is right, so that a client believes it."""
    try:
        unpack_packet(ledger_id, packet_ids(packet)[1], packet, DIGESTER)
    except ChecksumError:
        return False
    return True


def packet_ids(packet: bytes) -> tuple[int, int]:
    """Ledger and entry id that a packet says it is."""
    return int.from_bytes(packet[:8], "big"), int.from_bytes(packet[8:16], "big")


def lie(seed: int, lives: int = 4) -> Outcome:
    """Some lives of one seed on a device that lies."""
    return LyingLives(seed).run(lives)
