"""Older and newer states of a bookie: what its state number shows, and what follows from it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.cluster import keys
from bookie.cluster.cookie import Cookie, CookieState, decode_cookie, encode_cookie
from bookie.cluster.cookies import CookieManager
from bookie.env import Failpoints
from bookie.errors import (
    CookieError,
    DiskFullError,
    IdentityError,
    MetadataUnavailableError,
    UnauthorizedError,
    WrongClusterError,
)
from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.metadata.model import Operation, Stat
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned
from bookie.node import own_cookie
from bookie.node.engine.index.entry_index import INTEGRITY_SOUND
from bookie.node.engine.integrity import Integrity
from bookie.node.garbage_memory import StoreMemory
from bookie.node.own_cookie import OwnCookie, compare_states
from tests.conformance.faulty_store import FaultyStore
from tests.unit.node.engine.machine import IDENTITY, Machine, Snapshots, until
from tests.unit.node.node_room import add, ids_of, read
from tests.unit.node.started_bookie import metadata, stamped, started

OPEN = LedgerState.OPEN
UNKNOWN, NO_SUCH_ENTRY = Status.UNKNOWN_LEDGER_STATE, Status.NO_SUCH_ENTRY

COOKIE = Cookie("b1", ("/j",), ("/l",), "i1", "aa", CookieState.READY)


async def recorded(store: MetadataStore) -> Cookie:
    """The cookie of the metadata store."""
    found = await CookieManager(store).read("b1")
    assert found is not None
    return found.value


def in_directories(machine: Machine) -> list[Cookie]:
    """The cookies of both directories."""
    roots = (machine.journal, machine.root / "ledgers")
    return [decode_cookie((root / "COOKIE").read_bytes()) for root in roots]


@pytest.mark.parametrize(
    ("stored", "journal", "ledgers", "older", "went_back", "number"),
    [
        (5, (5, True), (5, True), "", "", 5),
        (5, (6, False), (5, True), "", "", 5),
        (5, (6, False), (6, False), "", "", 5),
        (6, (6, False), (6, False), "", "", 6),
        (6, (6, True), (6, False), "", "", 6),
        (6, (5, True), (6, True), "/j", "", 6),
        (6, (6, True), (5, True), "/l", "", 6),
        (7, (6, False), (6, False), "/j", "", 7),
        (5, (6, True), (6, True), "", "and was 6", 6),
        (5, (7, False), (6, True), "", "and was 6", 6),
        (0, (1, False), (0, True), "", "", 0),
        (4, (3, True), (6, True), "/j", "and was 6", 6),
    ],
)
def test_every_relation_of_the_copies(
    stored: int,
    journal: tuple[int, bool],
    ledgers: tuple[int, bool],
    older: str,
    went_back: str,
    number: int,
) -> None:
    """A crash between two steps is no older state, and anything else is one, here or there."""
    roots = [
        (path, replace(COOKIE, state_number=at, is_settled=settled))
        for path, (at, settled) in (("/j", journal), ("/l", ledgers))
    ]
    found = compare_states(replace(COOKIE, state_number=stored), roots)
    assert found.number == number
    assert (older in found.older, bool(found.older)) == (True, bool(older))
    assert (went_back in found.store_went_back, bool(found.store_went_back)) == (
        True,
        bool(went_back),
    )


async def test_each_start_and_stop_raises_the_number(
    machine: Machine, store: MetadataStore
) -> None:
    """In all copies alike; the incarnation stays."""
    await stamped(machine, store)
    before = await recorded(store)
    assert before.incarnation
    assert not before.is_in_doubt
    async with started(machine, store) as one:
        during = await recorded(store)
        assert one.bookie.incarnation == before.incarnation
        assert in_directories(machine) == [during, during]
    after = await recorded(store)
    assert before.state_number < during.state_number < after.state_number
    assert in_directories(machine) == [after, after]
    assert after.incarnation == before.incarnation


def as_a_copy_of(machine: Machine, copy: Path) -> None:
    """Put the directories back as they were."""
    shutil.rmtree(machine.root)
    shutil.copytree(copy, machine.root)


@pytest.mark.parametrize("parts", ["both", "journal", "ledgers"])
async def test_an_older_copy_of_the_directories_is_noticed(
    machine: Machine, store: MetadataStore, tmp_path: Path, parts: str
) -> None:
    """Later acknowledged entries are unknown here, not absent, and the incarnation is new."""
    await stamped(machine, store)
    await LedgerManager(store).create(metadata(1, OPEN, ("b1",)))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(3))
    copy = tmp_path / "copy"
    shutil.copytree(machine.root, copy)
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(3, 6))
        before = one.bookie.incarnation
    if parts != "both":
        other = "ledgers" if parts == "journal" else "journal"
        shutil.rmtree(copy / other)
        shutil.copytree(machine.root / other, copy / other)
    as_a_copy_of(machine, copy)
    async with started(machine, store) as after:
        assert after.bookie.incarnation != before
        assert (await read(after.bookie, 1, 6, 6)).status is UNKNOWN
        assert (await recorded(store)).is_in_doubt
        if parts == "both":
            assert ids_of(await read(after.bookie, 1, 0, 9)) == [0, 1, 2]
            assert (await read(after.bookie, 1, 3, 3)).status is UNKNOWN
        incarnation = after.bookie.incarnation
    async with started(machine, store) as after:
        assert after.bookie.incarnation == incarnation, "one doubt, one renewal"
        assert (await read(after.bookie, 1, 6, 6)).status is UNKNOWN


async def test_a_copy_made_while_the_bookie_ran_is_noticed_after_its_stop(
    machine: Machine, store: MetadataStore, tmp_path: Path
) -> None:
    """No start came between: the stop has a number of its own."""
    await stamped(machine, store)
    await LedgerManager(store).create(metadata(1, OPEN, ("b1",)))
    copy = tmp_path / "copy"
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(3))
        shutil.copytree(machine.root, copy)
        await add(one.bookie, 1, range(3, 6))
    as_a_copy_of(machine, copy)
    async with started(machine, store) as after:
        assert (await read(after.bookie, 1, 4, 4)).status is UNKNOWN


async def test_an_empty_disk_under_a_known_id_denies_nothing(
    machine: Machine, store: MetadataStore
) -> None:
    """By the documented way: the cookie is deleted, the directories are empty."""
    await stamped(machine, store)
    await LedgerManager(store).create(metadata(1, OPEN, ("b1",)))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(3))
        before = one.bookie.incarnation
    await store.delete(keys.cookie("b1"))
    shutil.rmtree(machine.root)
    async with started(machine, store) as after:
        assert after.bookie.incarnation != before
        assert (await read(after.bookie, 1, 0, 0)).status is UNKNOWN
        assert after.engine.needs_integrity_check


class Dies(BaseException):
    """Thrown where the process would have died."""


POINTS = [
    "cookie.after_metadata_new",
    "cookie.before_ready",
    "cookie.after_ready",
    "cookie.unsettled",
    "cookie.advanced",
    "boot.after_commit",
]


@pytest.mark.parametrize("loss", ["empty", "older"])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("listing", ["answers", "fails"])
async def test_a_doubt_survives_a_crash_at_every_step(
    machine: Machine, store: MetadataStore, tmp_path: Path, loss: str, point: str, listing: str
) -> None:
    """Whichever step of the start is the last: the next one still denies nothing."""
    await stamped(machine, store)
    await LedgerManager(store).create(metadata(1, OPEN, ("b1",)))
    copy = tmp_path / "copy"
    shutil.copytree(machine.root, copy)
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(3))
        before = one.bookie.incarnation
    if loss == "older":
        as_a_copy_of(machine, copy)
    else:
        await store.delete(keys.cookie("b1"))
        shutil.rmtree(machine.root)

    class Unreachable(LedgerManager):
        def list_readable(
            self, on_damaged: Callable[[int], object], after: int = -1
        ) -> AsyncIterator[Versioned[LedgerMetadata]]:
            raise MetadataUnavailableError("the metadata store does not answer")

    def die(name: str) -> None:
        if name == point:
            raise Dies(name)

    machine.failpoints = Snapshots(die)
    ledgers = LedgerManager(store) if listing == "answers" else Unreachable(store)
    with suppress(Dies, BaseExceptionGroup):
        async with started(machine, store, ledgers):
            pass
    machine.failpoints = Failpoints()
    async with started(machine, store) as after:
        assert (await read(after.bookie, 1, 0, 0)).status is UNKNOWN
        assert after.bookie.incarnation != before


async def test_a_crash_between_the_steps_is_no_doubt(
    machine: Machine, store: MetadataStore
) -> None:
    """All data is there: writers go on, and ledgers stay out of limbo."""
    await stamped(machine, store)
    await LedgerManager(store).create(metadata(1, OPEN, ("b1",)))
    for point in ("cookie.unsettled", "cookie.advanced"):
        before = await recorded(store)

        def die(name: str, point: str = point) -> None:
            if name == point:
                raise Dies(name)

        machine.failpoints = Snapshots(die)
        with suppress(Dies, BaseExceptionGroup):
            async with started(machine, store):
                pass
        machine.failpoints = Failpoints()
        async with started(machine, store) as after:
            assert after.bookie.incarnation == before.incarnation
            assert (await read(after.bookie, 1, 0, 0)).status.is_definite_negative


async def test_cookies_of_an_earlier_version_are_taken_as_they_are(
    machine: Machine, store: MetadataStore
) -> None:
    """They lack number and incarnation. This raises no doubt, and the next start has both."""
    await stamped(machine, store)
    await LedgerManager(store).create(metadata(1, OPEN, ("b1",)))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(3))
    found = await CookieManager(store).read("b1")
    assert found is not None
    old = replace(found.value, incarnation="", state_number=0)
    await CookieManager(store).write(old, found.version)
    for root in (machine.journal, machine.root / "ledgers"):
        (root / "COOKIE").write_bytes(encode_cookie(old))
    async with started(machine, store) as after:
        assert not after.engine.needs_integrity_check
        assert after.bookie.incarnation
        assert (await read(after.bookie, 1, 5, 5)).status is NO_SUCH_ENTRY
        assert (await recorded(store)).state_number == 1


async def test_two_disks_that_were_swapped_are_named(
    machine: Machine, store: MetadataStore, tmp_path: Path
) -> None:
    """The sentence says whose directory stands in the place."""
    await stamped(machine, store)
    path = machine.journal / "COOKIE"
    other = replace(decode_cookie(path.read_bytes()), bookie_id="b2", unique_id="bb")
    path.write_bytes(encode_cookie(other))
    with pytest.raises(Exception, match="holds data of bookie b2, and this is bookie b1"):
        await stamped(machine, store)


async def put_back_number(store: MetadataStore, number: int) -> None:
    """The metadata store as an older state of itself."""
    found = await CookieManager(store).read("b1")
    assert found is not None
    await CookieManager(store).write(replace(found.value, state_number=number), found.version)


async def test_a_store_that_went_back_is_doubted_durably(
    machine: Machine, store: MetadataStore
) -> None:
    """The bookie's own data is current, so ledgers stay out of limbo. But nothing is deleted,
    whatever the store says.

    The start raises the store's number above what it was, so only its memory tells of it.
    """
    await stamped(machine, store)
    await LedgerManager(store).create(metadata(1, OPEN, ("b1",)))
    before = (await recorded(store)).state_number
    async with started(machine, store) as one:
        incarnations = {one.bookie.incarnation}
    await put_back_number(store, before)
    for _ in range(2):
        async with started(machine, store) as after:
            incarnations.add(after.bookie.incarnation)
            assert not after.engine.needs_integrity_check
            await after.garbage.round()
            assert "went back in time" in after.garbage.stopped
            assert (await recorded(store)).state_number > before + 2
    assert len(incarnations) == 2, "the store may have named one that was renewed since"


async def test_a_store_that_goes_back_under_a_running_bookie_is_doubted(
    machine: Machine, store: MetadataStore
) -> None:
    """Before its number is raised again; a stop leaves the finding to the next start."""
    await stamped(machine, store)
    async with started(machine, store) as one:
        await one.garbage.round()
        await put_back_number(store, 1)
    assert (await recorded(store)).state_number == 1
    async with started(machine, store) as after:
        await after.garbage.round()
        assert "went back in time" in after.garbage.stopped


async def test_ledgers_are_listed_after_the_renewal_and_before_anybody_is_served(
    machine: Machine, store: MetadataStore
) -> None:
    """A ledger created between the two is in the listing, or its writer knows the new one."""
    await stamped(machine, store)
    before = (await recorded(store)).incarnation
    await LedgerManager(store).create(metadata(1, OPEN, ("b1",)))
    shutil.rmtree(machine.index)
    renewed: list[bool] = []

    class Watched(LedgerManager):
        async def list_readable(
            self, on_damaged: Callable[[int], object], after: int = -1
        ) -> AsyncIterator[Versioned[LedgerMetadata]]:
            cookie = await recorded(store)
            renewed.append(cookie.incarnation != before and cookie.is_in_doubt)
            # One that is created now has a writer that may still know the old incarnation.
            if len(renewed) == 1:
                await LedgerManager(store).create(metadata(2, OPEN, ("b1",)))
            async for found in super().list_readable(on_damaged, after):
                yield found

    async with started(machine, store, Watched(store)) as after:
        assert renewed[:1] == [True]
        for ledger_id in (1, 2):
            found = after.engine.known(ledger_id)
            assert found is not None
            assert found.limbo, "before the bookie could be asked"


async def test_a_cookie_that_another_process_changed_ends_this_one(
    machine: Machine, store: MetadataStore
) -> None:
    """The id belongs to somebody else then; what this one answers is the word of a former self."""
    await stamped(machine, store)
    async with started(machine, store) as one:
        assert one.bookie.incarnation
        own = (await recorded(store)).state_number
        await put_back_number(store, own + 1)
        with pytest.raises(IdentityError, match="another process"):
            await one.cookie.advance()
        await store.delete(keys.cookie("b1"))
        with pytest.raises(CookieError, match="was deleted"):
            await one.cookie.advance()


class _LateWrites(FaultyStore):
    """A store in which a write that was lost happens just before the next one."""

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        if self.lost and not self.lost_requests:
            await self._store.transaction(self.lost.pop())
        return await super().transaction(operations)


async def test_a_late_write_of_its_own_is_no_other_process(
    machine: Machine, store: MetadataStore
) -> None:
    """The end of a doubt is written, nobody answers, and the next look finds the doubt again."""
    await stamped(machine, store)
    late = _LateWrites(store)
    async with started(machine, late) as one:
        before = (await recorded(store)).state_number
        late.lost_requests = 2
        for _ in range(2):
            with pytest.raises(MetadataUnavailableError):
                await one.cookie.advance(is_in_doubt=False)
        assert len(one.cookie._unanswered) == 1, "a long outage fills no memory"
        late.lost.pop()  # the other one comes late
        await one.cookie.advance(is_in_doubt=True)
        after = await recorded(store)
        assert (after.state_number, after.is_in_doubt) == (before + 2, True)
        assert all(cookie.state_number == before + 2 for cookie in in_directories(machine))
        await put_back_number(store, before + 3)
        with pytest.raises(IdentityError, match="another process"):
            await one.cookie.advance()


@pytest.mark.parametrize("namesake", [False, True])
@pytest.mark.parametrize("instance_id", ["", "5c2b0c1e-0000-4000-8000-00000000ffff"])
async def test_a_store_that_holds_another_cluster_ends_nobody(
    machine: Machine, store: MetadataStore, instance_id: str, *, namesake: bool
) -> None:
    """It came back empty, or as another one: its cookies say nothing about this bookie."""
    await stamped(machine, store)
    async with started(machine, store) as one:
        before, own = one.bookie.incarnation, await recorded(store)
        await store.delete(keys.cookie("b1"))
        await store.delete(keys.INSTANCE_ID)
        if instance_id:
            await store.put(keys.INSTANCE_ID, instance_id.encode())
        if namesake:
            theirs = replace(own, instance_id=instance_id, unique_id="ff")
            await store.put(keys.cookie("b1"), encode_cookie(theirs))
        with pytest.raises(WrongClusterError, match="the metadata store holds"):
            await one.cookie.advance()
        with pytest.raises(WrongClusterError):
            await one.check.check()
        await store.put(keys.INSTANCE_ID, IDENTITY.instance_id.encode())
        await store.put(keys.cookie("b1"), encode_cookie(own))
        await one.cookie.advance()
        assert (await one.check.check()).whole
        assert one.bookie.incarnation == before


async def test_a_store_that_refuses_a_bookie_does_not_end_it(
    machine: Machine, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its users may be missing or wrong for a while."""
    refused = asyncio.Event()

    async def refuse(_: str) -> None:
        refused.set()
        raise UnauthorizedError("etcd does not let nobody use the keys")

    monkeypatch.setattr(own_cookie, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(own_cookie, "ADVANCE_SECONDS", 0.01)
    await stamped(machine, store)
    async with started(machine, store) as one:
        with monkeypatch.context() as patched:
            patched.setattr(store, "get", refuse)
            one.check.start()
            async with asyncio.timeout(60):
                await refused.wait()
            await until(lambda: "nobody" in one.check.unfinished)
        before = (await recorded(store)).state_number
        await one.cookie.advance()
        assert (await recorded(store)).state_number > before


async def test_a_doubt_is_durable_on_a_full_device(machine: Machine, store: MetadataStore) -> None:
    """The index gives its reserve for it. The start succeeds and remembers the doubt."""
    await stamped(machine, store)
    await LedgerManager(store).create(metadata(1, OPEN, ("b1",)))
    copy = machine.root.with_name("copy")
    shutil.copytree(machine.root, copy)
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(3))
    as_a_copy_of(machine, copy)
    reserve = machine.root / "ledgers" / "RESERVE"
    reserve.write_bytes(b"room")
    full: list[BaseException] = [DiskFullError("full")]
    index_set = Integrity.set

    async def no_room_at_first(self: Integrity, value: bytes) -> None:
        if full:
            raise full.pop()
        assert not reserve.exists()
        await index_set(self, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Integrity, "set", no_room_at_first)
        async with started(machine, store) as after:
            assert (await read(after.bookie, 1, 0, 0)).status is UNKNOWN


async def test_a_doubt_of_the_store_is_durable_on_a_full_device(
    machine: Machine, store: MetadataStore
) -> None:
    """The index gives its reserve for this as well."""
    await stamped(machine, store)
    before = (await recorded(store)).state_number
    async with started(machine, store):
        pass
    await put_back_number(store, before)
    reserve = machine.root / "ledgers" / "RESERVE"
    reserve.write_bytes(b"room")
    full: list[BaseException] = [DiskFullError("full")]
    save = StoreMemory.save

    async def no_room_at_first(self: StoreMemory) -> None:
        if full:
            raise full.pop()
        assert not reserve.exists()
        await save(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoreMemory, "save", no_room_at_first)
        async with started(machine, store) as after:
            await after.garbage.round()
            assert "went back in time" in after.garbage.stopped


async def test_directories_without_room_for_a_cookie_are_no_older_state(
    machine: Machine, store: MetadataStore
) -> None:
    """The store is told of the doubt, under the number that the directories have."""
    await stamped(machine, store)
    await LedgerManager(store).create(metadata(1, OPEN, ("b1",)))
    shutil.rmtree(machine.index)
    incarnations = [(await recorded(store)).incarnation]
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:

            async def no_room(self: OwnCookie, cookie: Cookie) -> bool:
                return False

            patch.setattr(OwnCookie, "_write", no_room)
            async with started(machine, store) as after:
                assert (await recorded(store)).is_in_doubt
                incarnations.append(after.bookie.incarnation)
    assert incarnations[0] != incarnations[1]
    assert incarnations[1] == incarnations[2], "one doubt, one renewal"


async def test_a_crash_while_a_doubt_ends_begins_no_new_one(
    machine: Machine, store: MetadataStore
) -> None:
    """The metadata store hears first: whenever the index says "sound", the cookie says so, too.

    A start with a sound index and a cookie in doubt is suspect, and all ledgers enter limbo.
    """
    await stamped(machine, store)
    await LedgerManager(store).create(metadata(1, LedgerState.CLOSED, ("b1",), last=9))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(10))
    shutil.rmtree(machine.index)
    said: list[bool] = []
    index_set = Integrity.set

    async def observed(self: Integrity, value: bytes) -> None:
        if value == INTEGRITY_SOUND:
            said.append((await recorded(store)).is_in_doubt)
        await index_set(self, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Integrity, "set", observed)
        async with started(machine, store) as after:
            await until(lambda: not after.engine.needs_integrity_check)
            assert after.cookie.is_in_doubt is False
    assert said == [False]
