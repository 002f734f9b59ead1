"""A bookie that lost all its data begins empty by itself, unless an entry could lose its last copy.

Whoever looks may be late: another bookie is lost at the same time, a disk is mounted meanwhile, the
same bookie starts twice.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie.cli import app
from bookie.cluster import keys
from bookie.cluster.cookie import CookieState
from bookie.cluster.cookies import CookieManager
from bookie.cluster.instance import initialize_cluster
from bookie.cluster.layout import read_layout
from bookie.cluster.registration_record import Registration, encode_registration
from bookie.env import Failpoints, ThreadWorkers
from bookie.errors import BadVersionError, CookieError, IdentityError
from bookie.ids import Status
from bookie.ledger.catalog import bookie_losses
from bookie.ledger.catalog.bookie_losses import (
    BookieLosses,
    DataNotExpendableError,
    ExaminedLoss,
)
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.copies.departures import Departures
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from bookie.node.engine.directories import locked_directories
from bookie.node.engine.index.entry_index import INTEGRITY_IN_LIMBO
from bookie.node.identity import ClaimedDirectories, Decision, ensure_identity
from tests.unit.node.engine.machine import IDENTITY, Machine
from tests.unit.node.node_room import add, read
from tests.unit.node.started_bookie import metadata, started

TRIO = ("b1", "b2", "b3")
LAST_COPIES = r"last copies of entries of 1 ledgers \(7\)"


class Trio:
    """Three bookies that have joined, and their directories."""

    def __init__(self, path: Path, store: MetadataStore) -> None:
        self.machines = {name: Machine(path / name) for name in TRIO}
        self.store = store
        self.cookies = CookieManager(store)

    async def begin(self, name: str, losses: BookieLosses | None) -> ClaimedDirectories:
        """The first steps of a start."""
        machine = self.machines[name]
        async with ThreadWorkers() as workers:
            environment = machine.environment(workers)
            with locked_directories(machine.disk, machine.settings) as directories:
                return await ensure_identity(
                    environment,
                    directories,
                    self.cookies,
                    name,
                    IDENTITY.instance_id,
                    losses=losses,
                )

    async def start(self, name: str) -> ClaimedDirectories:
        return await self.begin(name, BookieLosses(self.store))

    async def end_doubt(self, name: str) -> None:
        """The bookie has everything."""
        found = await self.cookies.read(name)
        assert found is not None
        await self.cookies.write(replace(found.value, is_in_doubt=False), found.version)

    async def register(self, *names: str, doubt: str = "", read_only: bool = False) -> None:
        """The bookies run."""
        for name in names:
            record = encode_registration(Registration(name, (), store_doubt=doubt))
            await self.store.put(keys.registration(name, read_only=read_only), record)

    async def stop(self, *names: str) -> None:
        for name in names:
            await self.store.delete(keys.registration(name, read_only=False))

    async def empty(self, *names: str, part: str = "") -> None:
        """Stop bookies, and empty their directories."""
        await self.stop(*names)
        for name in names:
            for root in self.roots(name):
                if part in ("", root.name):
                    shutil.rmtree(root)

    def roots(self, name: str) -> list[Path]:
        return [self.machines[name].journal, self.machines[name].root / "ledgers"]

    async def ledger(self, ledger_id: int, names: Sequence[str] = TRIO, ack: int = 2) -> None:
        size = len(names)
        fragments = (Fragment(0, tuple(names)),)
        ledger = LedgerMetadata(ledger_id, size, size, ack, LedgerState.OPEN, fragments)
        await LedgerManager(self.store).create(ledger.closed(9, 10))

    async def state(self, name: str) -> tuple[CookieState, bool]:
        found = await self.cookies.read(name)
        assert found is not None
        return found.value.state, found.value.is_in_doubt


@pytest.fixture
async def trio(tmp_path: Path) -> AsyncIterator[Trio]:
    async with open_store(f"memory://{tmp_path.name}") as store:
        await initialize_cluster(store)
        await store.put(keys.INSTANCE_ID, IDENTITY.instance_id.encode())
        trio = Trio(tmp_path, store)
        for name in TRIO:
            assert (await trio.start(name)).decision is Decision.STAMP
            await trio.end_doubt(name)
        await trio.register(*TRIO)
        yield trio


def _after_first_look(
    monkeypatch: pytest.MonkeyPatch, action: Callable[[], Awaitable[object]]
) -> list[str]:
    """Let something happen between the first look at the ledgers and what follows from it."""
    examine = BookieLosses.examine
    looks: list[str] = []

    async def first(self: BookieLosses, bookie_id: str, **options: Any) -> ExaminedLoss:
        found = await examine(self, bookie_id, **options)
        looks.append(bookie_id)
        if len(looks) == 1:
            await action()
        return found

    monkeypatch.setattr(bookie_losses.BookieLosses, "examine", first)
    return looks


async def test_lost_data_is_replaced_if_others_have_copies(trio: Trio) -> None:
    """The bookie begins as a new one does: in doubt, with another unique id."""
    await trio.ledger(1)
    before = await trio.cookies.read("b1")
    await trio.empty("b1")
    claim = await trio.start("b1")
    assert claim.decision is Decision.REPLACE
    assert claim.cookie.is_in_doubt
    after = await trio.cookies.read("b1")
    assert before is not None
    assert after is not None
    assert after.value.unique_id != before.value.unique_id
    assert after.value.incarnation == ""
    assert (after.value.state, after.value.is_in_doubt) == (CookieState.READY, True)
    assert (await trio.start("b1")).decision is Decision.START


async def test_without_leave_it_refuses(trio: Trio) -> None:
    await trio.empty("b1")
    with pytest.raises(CookieError, match=r"lost or replaced; .* `bookie cookie delete b1`"):
        await trio.begin("b1", None)


@pytest.mark.parametrize("part", ["journal", "ledgers"])
async def test_a_part_that_is_lost_is_not_replaced(trio: Trio, part: str) -> None:
    await trio.empty("b1", part=part)
    for _ in range(2):
        with pytest.raises(CookieError, match=r"lost or replaced; .* `bookie cookie delete b1`"):
            await trio.start("b1")


async def test_a_directory_with_stray_data_is_not_replaced(trio: Trio) -> None:
    """The cookies are gone, and a file is left."""
    await trio.empty("b1")
    stray = trio.machines["b1"].journal / "00000001.journal"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"data")
    with pytest.raises(CookieError, match="lost or replaced"):
        await trio.start("b1")
    assert stray.read_bytes() == b"data"


async def test_the_last_copies_are_not_given_up(trio: Trio) -> None:
    """The second of two bookies that lost their data refuses, until the first one is whole."""
    await trio.ledger(7)
    await trio.empty("b1")
    await trio.start("b1")
    await trio.register("b1")
    await trio.empty("b2")
    for _ in range(2):
        with pytest.raises(DataNotExpendableError, match=LAST_COPIES):
            await trio.start("b2")
    assert await trio.state("b2") == (CookieState.READY, False)
    await trio.end_doubt("b1")
    assert (await trio.start("b2")).decision is Decision.REPLACE


@pytest.mark.parametrize("found_lost", [False, True])
async def test_only_copies_of_bookies_that_run_count(trio: Trio, *, found_lost: bool) -> None:
    """The cookie of a bookie that is gone for good says that nothing is missing."""
    await trio.ledger(7, ("b1", "b2"))
    await trio.empty("b2")
    lost = Departures(trio.store, keys.LOST_BOOKIES)
    await (lost.add("b1") if found_lost else trio.stop("b1"))
    with pytest.raises(DataNotExpendableError, match=LAST_COPIES):
        await trio.start("b2")
    assert await trio.state("b2") == (CookieState.READY, False)
    await (lost.remove("b1") if found_lost else trio.register("b1", read_only=True))
    assert (await trio.start("b2")).decision is Decision.REPLACE


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_store_that_went_back_replaces_nothing(trio: Trio, *, read_only: bool) -> None:
    """It may lack ledgers, which nobody counts then."""
    await trio.empty("b1")
    await trio.stop("b3")
    await trio.register("b3", doubt="the store is older", read_only=read_only)
    with pytest.raises(DataNotExpendableError, match=r"b3 says that the store is older; .* gc b3"):
        await trio.start("b1")
    assert await trio.state("b1") == (CookieState.READY, False)


async def test_a_bookie_that_ends_meanwhile_counts_no_more(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trio.ledger(7)
    await trio.empty("b1")
    looks = _after_first_look(monkeypatch, lambda: trio.stop("b2"))
    with pytest.raises(DataNotExpendableError, match=LAST_COPIES):
        await trio.start("b1")
    assert looks == ["b1", "b1"]


async def test_two_lost_bookies_without_a_common_ledger_are_both_replaced(trio: Trio) -> None:
    await trio.ledger(1, ("b1", "b3"))
    await trio.ledger(2, ("b2", "b3"))
    await trio.empty("b1", "b2")
    for name in ("b1", "b2"):
        assert (await trio.start(name)).decision is Decision.REPLACE


async def test_of_two_at_the_same_time_the_second_looks_again(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that the other one has copies; only one of them may act on it."""
    await trio.ledger(7)
    await trio.empty("b1")

    async def forget_the_other() -> None:
        await trio.stop("b2")
        losses = BookieLosses(trio.store)
        await losses.forget(await losses.examine("b2"))

    looks = _after_first_look(monkeypatch, forget_the_other)
    with pytest.raises(DataNotExpendableError, match=LAST_COPIES):
        await trio.start("b1")
    assert looks == ["b1", "b2", "b1"]
    assert await trio.state("b1") == (CookieState.READY, False)
    assert await trio.cookies.read("b2") is None


async def test_the_changes_themselves_exclude_each_other(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if both compared the reliable bookies before either one changed its cookie."""
    await trio.ledger(7)
    await trio.stop("b1", "b2")
    losses = BookieLosses(trio.store)
    one, other = [await losses.examine(name) for name in ("b1", "b2")]

    async def all_reliable(_: CookieManager) -> frozenset[str]:
        return frozenset(TRIO)

    monkeypatch.setattr(bookie_losses, "reliable_bookies", all_reliable)
    await losses.forget(one)
    with pytest.raises(BadVersionError, match="another bookie was forgotten meanwhile"):
        await losses.forget(other)
    assert await trio.state("b2") == (CookieState.READY, False)


async def test_two_without_a_common_ledger_at_the_same_time(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one looks again, and goes on."""
    await trio.empty("b1", "b2")
    looks = _after_first_look(monkeypatch, lambda: trio.start("b2"))
    assert (await trio.start("b1")).decision is Decision.REPLACE
    assert looks == ["b1", "b2", "b1"]


async def test_the_same_bookie_twice_at_the_same_time(
    trio: Trio, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One of both processes replaces it, and the other one sees directories that are not its."""
    await trio.empty("b1")
    other = Trio(tmp_path, trio.store)
    other.machines["b1"] = Machine(tmp_path / "elsewhere")

    async def start_the_other() -> None:
        with pytest.raises(CookieError, match="director"):
            await other.start("b1")
        claimed = await trio.cookies.read("b1")
        assert claimed is not None
        await trio.cookies.write(claimed.value, claimed.version)  # as if it had changed its cookie

    looks = _after_first_look(monkeypatch, start_the_other)
    assert (await trio.start("b1")).decision is Decision.REPLACE
    assert looks == ["b1", "b1"]


async def test_a_disk_that_is_mounted_meanwhile_is_left_alone(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trio.stop("b1")
    roots = trio.roots("b1")
    kept = {root: root.with_name(f"{root.name}.kept") for root in roots}
    for root, aside in kept.items():
        root.rename(aside)

    async def mount() -> None:
        for root, aside in kept.items():
            root.rename(root.with_name(f"{root.name}.below"))
            aside.rename(root)

    _after_first_look(monkeypatch, mount)
    before = await trio.cookies.read("b1")
    with pytest.raises(CookieError, match="was mounted during its start; start it again"):
        await trio.start("b1")
    assert await trio.cookies.read("b1") == before
    assert (await trio.start("b1")).decision is Decision.START


async def test_a_disk_that_is_mounted_too_late_is_refused(trio: Trio) -> None:
    """Another bookie has its id by then."""
    await trio.stop("b1")
    roots = trio.roots("b1")
    for root in roots:
        root.rename(root.with_name(f"{root.name}.kept"))
    await trio.start("b1")
    for root in roots:
        shutil.rmtree(root)
        root.with_name(f"{root.name}.kept").rename(root)
    said = r"differs .* in its unique id; .* `bookie cookie delete b1` and `bookie cookie restore`"
    with pytest.raises(CookieError, match=said):
        await trio.start("b1")


async def test_a_bookie_that_may_run_is_not_replaced(trio: Trio) -> None:
    """Its process may hold the data elsewhere, or its session has to end."""
    await trio.empty("b1")
    for read_only in (False, True):
        key = keys.registration("b1", read_only=read_only)
        await trio.store.put(key, b"")
        with pytest.raises(IdentityError, match="bookie b1 is running"):
            await trio.start("b1")
        await trio.store.delete(key)
    assert await trio.state("b1") == (CookieState.READY, False)
    assert (await trio.start("b1")).decision is Decision.REPLACE


@pytest.mark.parametrize("damaged", ["a cookie", "a ledger"])
async def test_who_cannot_see_all_does_not_replace(trio: Trio, damaged: str) -> None:
    await trio.ledger(7)
    ledger = (await read_layout(trio.store)).key(7)
    key = keys.cookie("b3") if damaged == "a cookie" else ledger
    await trio.store.put(key, b"damaged")
    await trio.empty("b1")
    with pytest.raises(DataNotExpendableError, match="nobody can tell if it has the last copies"):
        await trio.start("b1")
    assert await trio.state("b1") == (CookieState.READY, False)


class _Killed(BaseException):
    """Thrown where the process would have died."""


class _KillAt(Failpoints):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def hit(self, name: str) -> None:
        if name == self._name:
            raise _Killed(name)


@pytest.mark.parametrize(
    "step", ["cookie.after_metadata_new", "cookie.after_directory", "cookie.before_ready"]
)
async def test_an_interrupted_replacement_goes_on(trio: Trio, step: str) -> None:
    """Also with a start that may not replace; meanwhile its copies do not count."""
    await trio.ledger(7)
    await trio.empty("b1")
    machine = trio.machines["b1"]
    machine.failpoints = _KillAt(step)
    with pytest.raises(_Killed):
        await trio.start("b1")
    machine.failpoints = Failpoints()
    await trio.register("b1")
    await trio.empty("b2")
    with pytest.raises(DataNotExpendableError, match="last copies"):
        await trio.start("b2")
    assert (await trio.begin("b1", None)).decision is Decision.RESUME
    assert await trio.state("b1") == (CookieState.READY, True)


def test_a_restored_cookie_brings_no_old_incarnation_back(tmp_path: Path) -> None:
    """The bookie ran on empty directories meanwhile, and acknowledged what it now lacks.

    It was in doubt before, because it had been away: no ledger of it was in limbo.
    """
    uri, root = f"memory://{tmp_path.name}", tmp_path / "m"

    async def fill_kept() -> str:
        """Entries 0 … 2 of ledger 1; ledger 2 lacks what was written while it was away."""
        async with open_store(uri) as store:
            await initialize_cluster(store)
            await store.put(keys.INSTANCE_ID, IDENTITY.instance_id.encode())
            ledgers = LedgerManager(store)
            async with started(Machine(root), store) as one:
                open_ledger = metadata(1, LedgerState.OPEN, TRIO, write_quorum=3)
                await ledgers.create(replace(open_ledger, ack_quorum_size=2))
                await ledgers.create(metadata(2, LedgerState.CLOSED, TRIO, last=9, write_quorum=3))
                await add(one.bookie, 1, range(3))
                await one.check.check()
                assert one.engine.verdict == INTEGRITY_IN_LIMBO
                return one.bookie.incarnation

    async def append_elsewhere() -> None:
        async with open_store(uri) as store, started(Machine(root), store) as one:
            assert (await add(one.bookie, 1, range(3, 6))).status is Status.OK

    async def statuses() -> tuple[str, list[Status]]:
        async with open_store(uri) as store, started(Machine(root), store) as one:
            replies = [await read(one.bookie, ledger_id, 3, 3) for ledger_id in (1, 2)]
            return one.bookie.incarnation, [reply.status for reply in replies]

    def command(*words: str) -> None:
        assert app.run(["cookie", *words, "--metadata", uri]) == 0

    before = asyncio.run(fill_kept())
    root.rename(tmp_path / "kept")
    command("delete", "b1", "--yes", "--force")
    asyncio.run(append_elsewhere())
    shutil.rmtree(root)
    (tmp_path / "kept").rename(root)
    command("delete", "b1", "--yes", "--force")
    command("restore", str(root / "journal"), str(root / "ledgers"))
    after, said = asyncio.run(statuses())
    assert after != before
    assert said == [Status.UNKNOWN_LEDGER_STATE] * 2
