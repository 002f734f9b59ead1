"""What a scenario may expect, one function a word; the README lists them."""

from __future__ import annotations

from collections.abc import Callable

from bookie.entry.entry import parse_header
from bookie.ledger.quorum import slots_of
from tests.property.ledger.protocol_world import SimBookie
from tests.scenarios.scenario_script import ScriptError, demand, number, numbers
from tests.scenarios.scenario_world import (
    Client,
    ScenarioWorld,
    ScriptedRecoverer,
    ScriptedWriter,
)

Words = tuple[str, ...]


def same(found: object, expected: object) -> None:
    """Fail unless they are equal."""
    demand(found == expected, f"found {found}")


def writer_of(client: Client) -> ScriptedWriter:
    """The client, if it is the writer."""
    if not isinstance(client, ScriptedWriter):
        raise ScriptError("this is asked of the writer")
    return client


def bookie_of(world: ScenarioWorld, name: str) -> SimBookie:
    """A bookie by its name."""
    if name not in world.bookies:
        raise ScriptError(f"there is no bookie {name}")
    return world.bookies[name]


# -- clients ---------------------------------------------------------------------------------------


def lac(_world: ScenarioWorld, client: Client, words: Words) -> None:
    """`lac 0`: the last add confirmed, of the writer or as a recovery heard it."""
    same(client.machine.last_add_confirmed, number(words[0]))


def waiting(_world: ScenarioWorld, client: Client, words: Words) -> None:
    """`waiting 1 2`: the unconfirmed entries. Without a number: there are some."""
    writer = writer_of(client)
    batches = [writer.kept[batch.number] for batch in writer.machine.window.pending]
    ids = [entry_id for batch in batches for entry_id in batch.entry_ids().tolist()]
    demand(ids, "nothing waits") if not words else same(ids, numbers(words))


def keeps(_world: ScenarioWorld, client: Client, words: Words) -> None:
    """`keeps 0 1`: the entries whose bytes the writer has not released."""
    kept = writer_of(client).kept.values()
    same([entry_id for batch in kept for entry_id in batch.entry_ids().tolist()], numbers(words))


def error(_world: ScenarioWorld, client: Client, words: Words) -> None:
    """`error LedgerFencedError`: why it ended or failed to close. `error none`: it ended well."""
    found = client.error
    same("none" if found is None else type(found).__name__, words[0])


def asks(world: ScenarioWorld, client: Client, words: Words) -> None:
    """`asks write`, `asks read`, `asks publish`, `asks choose 1 2` or `asks nothing`."""
    operation = world.operations.get(client.name)
    found: list[str] = [operation.kind] if operation is not None else []
    if client.choice is not None:
        found += ["choose", *map(str, slots_of(client.choice.slots))]
    same(found or ["nothing"], list(words))


def timer(world: ScenarioWorld, client: Client, words: Words) -> None:
    """`timer replace 2`: it runs."""
    name = words[0], number(words[1]) if words[1:] else 0
    mine = [timer for owner, timer in world.timers if owner is client]
    demand(name in mine, f"found {mine}")


def no_timer(world: ScenarioWorld, client: Client, words: Words) -> None:
    """`no-timer replace`: timers of the kind are off."""
    mine = [timer for owner, timer in world.timers if owner is client]
    demand(words[0] not in {kind for kind, _ in mine}, f"found {mine}")


def skipped(_world: ScenarioWorld, client: Client, words: Words) -> None:
    """`skipped 2`: the slots that the writer goes on without."""
    same(list(slots_of(writer_of(client).machine.slots.dead)), numbers(words))


def next_entry(_world: ScenarioWorld, client: Client, words: Words) -> None:
    """`next 5`: the entry that a recovery reads or stores now."""
    if not isinstance(client, ScriptedRecoverer):
        raise ScriptError("this is asked of a recovery")
    same(client.machine.next_entry_id, number(words[0]))


def recovered(_world: ScenarioWorld, client: Client, _words: Words) -> None:
    """`recovered`: the recovery has ended well."""
    if not isinstance(client, ScriptedRecoverer):
        raise ScriptError("this is asked of a recovery")
    demand(client.recovered is not None, f"it is {client.machine.state.value}, {client.failed}")


def sends(world: ScenarioWorld, client: Client, words: Words) -> None:
    """`sends b3 0 1 lac`: what is on its way to a bookie; of a recovery `fence`, `read`, `add`."""
    name, *expected = words
    if isinstance(client, ScriptedRecoverer):
        mine = [r for r in world.requests if (r.client, r.bookie_id) == (client.name, name)]
        same([request.kind for request in mine] or ["nothing"], expected)
        return
    found: list[str] = []
    for _, tag in client.lane(name).requests:
        assert isinstance(tag, tuple)
        batch = client.sent.get(tag[0])
        found += ["lac"] if batch is None else map(str, batch)
    same(found or ["nothing"], expected)


# -- the metadata store ----------------------------------------------------------------------------


def ensemble(world: ScenarioWorld, _client: Client, words: Words) -> None:
    """`ensemble 0: b0 b1 b3`: the last fragment in the store."""
    last = world.store.metadata.last_fragment
    same(f"{last.first_entry_id}: {' '.join(last.bookies)}", " ".join(words))


def fragment(world: ScenarioWorld, _client: Client, words: Words) -> None:
    """`fragment 0: b0 b1 b5`: one of the fragments in the store."""
    every = world.store.metadata.fragments
    found = [f"{one.first_entry_id}: {' '.join(one.bookies)}" for one in every]
    demand(" ".join(words) in found, f"found {found}")


def fragments(world: ScenarioWorld, _client: Client, words: Words) -> None:
    """`fragments 0 2`: the first ids of all fragments in the store."""
    same([f.first_entry_id for f in world.store.metadata.fragments], numbers(words))


def state(world: ScenarioWorld, _client: Client, words: Words) -> None:
    """`state OPEN` or `state CLOSED 3`: in the store, with the last entry."""
    metadata = world.store.metadata
    last = [str(metadata.last_entry_id)] if metadata.is_closed else []
    same([metadata.state.name, *last], list(words))


def custom(world: ScenarioWorld, _client: Client, words: Words) -> None:
    """`custom by=me`: custom metadata in the store."""
    pairs = world.store.metadata.custom_metadata.items()
    same([f"{key}={value.decode()}" for key, value in pairs], list(words))


# -- bookies ---------------------------------------------------------------------------------------


def holds(world: ScenarioWorld, _client: Client, words: Words) -> None:
    """`holds b3 0 1` or `holds b3 nothing`: all that the bookie has."""
    same(sorted(bookie_of(world, words[0]).entries), numbers(words[1:]))


def told(world: ScenarioWorld, _client: Client, words: Words) -> None:
    """`told b3 0`: the highest LAC that the bookie has heard, in any way."""
    same(bookie_of(world, words[0]).lac(), number(words[1]))


def carries(world: ScenarioWorld, _client: Client, words: Words) -> None:
    """`carries b3 1 -1`: the LAC in the packet of entry 1 on b3."""
    packet = bookie_of(world, words[0]).entries.get(number(words[1]))
    demand(packet is not None, "it lacks the entry")
    assert packet is not None
    same(parse_header(packet).last_add_confirmed, number(words[2]))


def fenced(world: ScenarioWorld, _client: Client, words: Words) -> None:
    """`fenced b0 b1`: exactly these bookies have fenced the ledger."""
    same(sorted(name for name, one in world.bookies.items() if one.fenced), sorted(words))


EXPECTATIONS: dict[str, Callable[[ScenarioWorld, Client, Words], None]] = {
    "lac": lac,
    "waiting": waiting,
    "keeps": keeps,
    "error": error,
    "asks": asks,
    "timer": timer,
    "no-timer": no_timer,
    "skipped": skipped,
    "next": next_entry,
    "recovered": recovered,
    "sends": sends,
    "ensemble": ensemble,
    "fragment": fragment,
    "fragments": fragments,
    "state": state,
    "custom": custom,
    "holds": holds,
    "told": told,
    "carries": carries,
    "fenced": fenced,
}
