"""Is what a booted engine has what was promised? Every lie is an `AssertionError` that names it."""

from __future__ import annotations

from bookie.entry.entry import lac_packet_ids
from bookie.ids import MAX_ID, Status
from bookie.node.engine.engine import Engine
from bookie.node.engine.format.blocks import FileKind
from bookie.node.engine.format.index_rows import FileState
from bookie.node.engine.format.pages import decode_pages
from bookie.node.engine.ledger_state import LocalLedger
from tests.sim.promises import KEY, NO_LAC, OTHER_KEY, Frozen, LedgerPromise, packets_of

MIB = 1024 * 1024


async def ids_of(engine: Engine, state: LocalLedger) -> list[int]:
    """Every id that the listing of a ledger names."""
    found: list[int] = []
    async for firsts, lasts in engine.entry_ranges(state, 0, MAX_ID):
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            found += range(first, last + 1)
    return found


async def packets_stored(engine: Engine, state: LocalLedger) -> dict[int, bytes]:
    """Every entry of a ledger, as it is read; listing and reads must agree."""
    ids = await ids_of(engine, state)
    found: dict[int, bytes] = {}
    position = 0
    while position < len(ids):
        result = await engine.read(
            state, ids[position], ids[-1], entries_max=4096, bytes_max=4 * MIB
        )
        assert result.batch is not None, (state.ledger_id, ids[position], result)
        packets = packets_of(result.batch)
        assert list(packets) == ids[position : position + len(packets)], (
            f"ledger {state.ledger_id}: the listing has {ids}, a read gives {list(packets)}"
        )
        found |= packets
        position += len(packets)
        if position < len(ids):
            expected = Status.NO_SUCH_ENTRY if ids[position] > ids[position - 1] + 1 else Status.OK
            assert result.stopped_by is expected, result
    return found


async def check(engine: Engine, promises: Frozen, *, power: bool) -> None:
    """Compare everything that `engine` has with `promises`, after a power cut or a kill."""
    report = engine.report
    assert report.corrupt == (), report
    assert not report.rebuilt, report
    assert not engine.needs_integrity_check, report
    for ledger_id, promise in promises.items():
        await check_ledger(engine, ledger_id, promise, power=power)
    rows, _ = await engine.ledgers(-1, 10_000)
    for row in rows:
        assert row.ledger_id in promises, f"ledger {row.ledger_id} was never heard of"
    check_files(engine)


async def check_ledger(
    engine: Engine, ledger_id: int, promise: LedgerPromise, *, power: bool
) -> None:
    """One ledger."""
    state = await engine.load(ledger_id)
    name = f"ledger {ledger_id}"
    assert state.deleted in promise.deleted, f"{name}: deleted is {state.deleted}"
    if state.deleted:
        return
    assert state.fenced in promise.fenced or state.limbo, f"{name}: fenced is {state.fenced}"
    assert state.limbo in promise.limbo, f"{name}: limbo is {state.limbo}"
    lac = lac_packet_ids(state.lac_packet).last_add_confirmed if state.lac_packet else NO_LAC
    assert promise.lac_durable <= lac <= promise.lac_max, f"{name}: the explicit LAC is {lac}"
    found = await packets_stored(engine, state)
    certain = promise.stored.keys() if power else promise.stored.keys() | promise.written.keys()
    lost = sorted(certain - found.keys())
    assert not lost, f"{name}: acknowledged entries {lost} are gone"
    for entry_id, packet in found.items():
        allowed = promise.allowed(entry_id)
        if not power and entry_id in promise.written and entry_id not in promise.tried:
            allowed = (promise.written[entry_id],)
        assert packet in allowed, f"{name}: entry {entry_id} has other bytes, {packet[-24:]!r}"
    if certain:
        refusal = engine.refusal(state, OTHER_KEY, recovery=True)
        assert refusal is not None, f"{name}: any key is good"
        assert state.entries == len(found), f"{name}: counts {state.entries}, has {len(found)}"
    refusal = engine.refusal(state, KEY, recovery=False)
    if state.fenced:
        assert refusal is not None, f"{name}: fenced, and takes an add"
        assert refusal.status is Status.FENCED
    else:
        assert refusal is None, f"{name}: {refusal}"


def check_files(engine: Engine) -> None:
    """Live bytes are the sizes of the slots, and each slot points into a file that is there."""
    index = engine._booted.index
    with index._store.read() as txn:
        pairs = txn.range("locations", b"", b"\xff" * 17, 100_000)
    live: dict[int, int] = {}
    if pairs:
        slots = decode_pages(pairs)[1].reshape(-1, 3)
        for number, _, size in slots[slots[:, 2] > 0].tolist():
            live[number] = live.get(number, 0) + size
    rows = index.files()
    assert {number: row.live_bytes for number, row in rows.items() if row.live_bytes} == live
    present = set(engine._booted.files.numbers())
    assert live.keys() <= present, f"slots point into {sorted(live.keys() - present)}"
    for number, row in rows.items():
        if row.kind == FileKind.ENTRY_LOG:
            assert row.state is FileState.SEALED, f"log {number} is open"


async def adopt(engine: Engine, promises: Frozen) -> Frozen:
    """What the engine has became durable with its start: the promises from now on."""
    adopted: Frozen = {}
    for ledger_id in promises:
        state = await engine.load(ledger_id)
        if not state.exists:
            adopted[ledger_id] = LedgerPromise()
            continue
        packet = state.lac_packet
        lac = lac_packet_ids(packet).last_add_confirmed if packet else NO_LAC
        adopted[ledger_id] = LedgerPromise(
            stored={} if state.deleted else await packets_stored(engine, state),
            fenced=(state.fenced,),
            limbo=(state.limbo,),
            deleted=(state.deleted,),
            lac_durable=lac,
            lac_max=lac,
        )
    return adopted
