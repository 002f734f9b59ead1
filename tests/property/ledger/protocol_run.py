"""One seeded run: a writer, two recoverers, an adversary, and the rules that must hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from bookie.errors import BookieError
from bookie.ledger.metadata import LedgerState
from bookie.ledger.recover.recovery import LedgerRecovery
from bookie.ledger.write import writer_events
from bookie.ledger.write.writer import LedgerWriter
from tests.property.ledger.protocol_clients import SimRecoverer, SimWriter, read_range
from tests.property.ledger.protocol_faults import Faults
from tests.property.ledger.protocol_world import SimBookie, World, require

SIZES = [
    (3, 3, 2),
    (3, 3, 3),
    (2, 2, 1),
    (2, 2, 2),
    (3, 2, 2),
    (4, 3, 2),
    (5, 3, 2),
    (4, 2, 1),
    (1, 1, 1),
]


@dataclass(frozen=True)
class Setting:
    """The differences between runs besides the seed."""

    sizes: tuple[int, int, int] = (3, 3, 2)
    faults: Faults = field(default_factory=Faults)
    deferred_sync: bool = False
    steps: int = 250
    spares: int = 0
    """Bookies beside the first ensemble."""
    duel: bool = False
    """One batch only, and recovery starts while it is on its way."""
    loses_bookie: bool = False
    """One bookie of the ensemble dies for good, at some step."""
    silently: bool = False
    """It answers nothing then, and no timeout answers in its place."""
    crashing: bool = False
    """More recoverers, and each of them but the last crashes between two of its effects."""
    writer: type[LedgerWriter] = LedgerWriter
    recovery: type[LedgerRecovery] = LedgerRecovery
    bookie: type[SimBookie] = SimBookie


def run(seed: int, setting: Setting) -> World:
    """One run from a seed; raises `ViolationError` when a rule is broken."""
    world = World(seed, setting.sizes, setting.faults, setting.bookie, setting.spares)
    rng = world.rng
    writer = SimWriter(world, setting.writer, deferred_sync=setting.deferred_sync)
    recoverers: list[SimRecoverer] = []
    recovery_from = rng.randrange(setting.steps)
    recoverers_max, recovery_rate = (4, 0.1) if setting.crashing else (2, 0.024)
    if setting.duel:
        for stream in world.streams:
            world.connect_stream(stream)
        writer.append()
        recovery_from, recoverers_max, recovery_rate = rng.randrange(6), rng.choice([1, 1, 2]), 0.5
    bookie_lost_at = rng.randrange(setting.steps) if setting.loses_bookie else -1
    for step in range(setting.steps):
        if step == bookie_lost_at:
            world.lose_bookie(silent=setting.silently)
        if (not world.deliver_one() or rng.random() < 0.3) and not setting.duel:
            writer.append()
        world.disturb()
        if rng.random() < setting.faults.tell_silence:
            slot = rng.randrange(world.quorum.ensemble_size)
            writer.step(writer_events.SlotSilent(slot, writer.machine.epochs[slot]))
        if (
            step >= recovery_from
            and len(recoverers) < recoverers_max
            and rng.random() < recovery_rate
        ):
            effects_max = rng.randrange(40) if setting.crashing else math.inf
            recoverers.append(SimRecoverer(world, setting.recovery, effects_max))
        chance = rng.random()
        if chance < 0.1 and not writer.crashed:
            writer.step(writer_events.Idle())
        elif chance < 0.13 and not writer.crashed and setting.deferred_sync:
            writer.step(writer_events.Force())
        elif chance < 0.133 and not writer.crashed:
            writer.step(writer_events.Close())
        elif chance < 0.136:
            writer.crash() if not writer.crashed else None
        elif chance < 0.138 and recoverers:
            rng.choice(recoverers).crash()
    _settle(world, writer, recoverers, setting)
    _check(world, writer, recoverers)
    world.newcomers = sum(recoverer.newcomers for recoverer in recoverers)
    return world


def _drain(world: World) -> None:
    """Deliver everything; timers fire only when nothing else happens.

    A writer that lacks spares asks for newcomers again and again, so that a world may rest when
    only this is left.
    """
    asked = 0
    for _ in range(20_000):
        if world.deliver_one():
            continue
        asked += all(kind == "spare" for _, (kind, _) in world.timers)
        if asked > 5 or not world.fire_a_timer():
            return
    raise AssertionError("the world does not come to rest")


def _settle(
    world: World, writer: SimWriter, recoverers: list[SimRecoverer], setting: Setting
) -> None:
    """Faults end. Then the ledger can be closed: by its writer, or by one more recovery (L1)."""
    world.heal()
    _drain(world)
    machine = writer.machine
    is_alive = not writer.crashed and machine.error is None and not recoverers
    require(
        not is_alive or not machine.window.pending,
        "L1: without faults everything is acknowledged",
    )
    if not writer.crashed and world.rng.random() < 0.5:
        writer.step(writer_events.Close())
        _drain(world)
        require(writer.closed or writer.close_error, "L1: close ends")
    last = SimRecoverer(world, setting.recovery)
    recoverers.append(last)
    _drain(world)
    require(last.recovered is not None, f"L1: a recovery without faults closes: {last.failed}")


def _check(world: World, writer: SimWriter, recoverers: list[SimRecoverer]) -> None:
    final = world.store.metadata
    require(final.state is LedgerState.CLOSED, "L1: the ledger is closed")
    last, quorum = final.last_entry_id, world.quorum
    require(world.acknowledged <= last, "I1, C4: closed before an acknowledged entry")
    for recoverer in recoverers:
        outcome = recoverer.recovered
        require(outcome is None or outcome == final, "C7: recoveries agree")
    if writer.closed is not None:
        require(writer.closed == final, "C7: the writer's close is what is stored")
        require(last == writer.machine.last_add_confirmed, "C7: it closed at its own LAC")
    require(
        all(lac <= last for lac in world.lacs_seen),
        f"C5, C8, I16: a bookie told LAC {max(world.lacs_seen, default=-1)}, closed at {last}",
    )
    length = 0
    for entry_id in range(last + 1):
        length += len(world.payloads[entry_id])
        names = final.fragment_of(entry_id).bookies
        members = [world.bookies[names[slot]] for slot in quorum.write_set(entry_id)]
        holders = [
            bookie
            for bookie in members
            # A loss that the bookie itself does not suspect is none that was allowed for.
            if entry_id in bookie.entries or (bookie.limbo and entry_id in bookie.destroyed)
        ]
        require(len(holders) >= quorum.ack_quorum_size, f"I3: {len(holders)} of entry {entry_id}")
    require(final.length == length, f"C7: length {final.length} is stored, {length} is true")
    if last >= 0:
        try:
            entries = read_range(world, 0, last)
        except BookieError as error:
            raise AssertionError(f"I2: {error}") from error
        require([e.entry_id for e in entries] == list(range(last + 1)), "C12: exactly the range")
        for entry in entries:
            same = entry.payload == world.payloads[entry.entry_id]
            require(same, f"C1, C2: entry {entry.entry_id} reads as another")
