"""Whose directories these are: every row of the table, and a crash at every step of stamping."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from bookie.cluster import keys
from bookie.cluster.cookie import Cookie, CookieState, decode_cookie, encode_cookie
from bookie.cluster.cookies import CookieManager
from bookie.env import Failpoints, ThreadWorkers
from bookie.errors import BadVersionError, CookieError, FormatError
from bookie.metadata.store import MetadataStore
from bookie.node.engine.directories import locked_directories
from bookie.node.identity import Decision, Root, decide, ensure_identity
from tests.unit.node.engine.machine import IDENTITY, Machine

OURS = Cookie(
    bookie_id="b1",
    journal_dirs=("/j",),
    ledger_dirs=("/l",),
    instance_id=IDENTITY.instance_id,
    unique_id="aa",
    state=CookieState.NEW,
)
FOREIGN = {
    "another bookie": replace(OURS, bookie_id="b2"),
    "another journal": replace(OURS, journal_dirs=("/other",)),
    "more ledger directories": replace(OURS, ledger_dirs=("/l", "/m")),
    "another cluster": replace(OURS, instance_id="other"),
}
ROOTS: dict[str, tuple[Cookie | None, bool]] = {
    "missing, empty": (None, True),
    "missing, with data": (None, False),
    "equal": (OURS, False),
    "equal, empty": (OURS, True),
    "equal, ready": (replace(OURS, state=CookieState.READY), False),
    "another unique id": (replace(OURS, unique_id="bb"), False),
} | {name: (cookie, False) for name, cookie in FOREIGN.items()}
RECORDED: dict[str, Cookie | None] = {
    "none": None,
    "new": OURS,
    "ready": replace(OURS, state=CookieState.READY),
} | {f"{name}, ready": replace(c, state=CookieState.READY) for name, c in FOREIGN.items()}


def by_the_table(recorded: str, roots: tuple[str, str], may_replace: bool) -> Decision | None:
    """The table, row by row; None to refuse."""
    equal = [name.startswith("equal") for name in roots]
    fresh = [name == "missing, empty" for name in roots]
    match recorded:
        case "none" if all(fresh):
            return Decision.STAMP
        case "new" if all(a or b for a, b in zip(equal, fresh, strict=True)):
            return Decision.RESUME
        case "ready" if all(equal):
            return Decision.START
        case "ready" if all(fresh) and may_replace:
            return Decision.REPLACE
        case _:
            return None


def test_every_combination_has_the_answer_of_the_table() -> None:
    """Of what the metadata store holds and what each of two directories holds."""
    expected = replace(OURS, unique_id="fresh, does not count")
    seen: set[Decision | None] = set()
    for may_replace, (recorded, *names) in product((False, True), product(RECORDED, ROOTS, ROOTS)):
        roots = [Root(path, *ROOTS[name]) for path, name in zip(("/j", "/l"), names, strict=True)]
        wanted = by_the_table(recorded, (names[0], names[1]), may_replace)
        seen.add(wanted)
        about = "b1", expected, RECORDED[recorded], roots
        if wanted is None:
            with pytest.raises(CookieError):
                decide(*about, may_replace=may_replace)
        else:
            assert decide(*about, may_replace=may_replace) is wanted
    assert seen == {None, *Decision}


# --- on directories and a store ---------------------------------------------------------------


class Killed(BaseException):
    """Thrown where the process would have died."""


class KillAt(Failpoints):
    """Dies at the nth passage of a failpoint."""

    def __init__(self, name: str, nth: int) -> None:
        super().__init__()
        self._name, self._left = name, nth

    def hit(self, name: str) -> None:
        """Die here?"""
        if name == self._name:
            self._left -= 1
            if self._left == 0:
                raise Killed(name)


STEPS = [
    ("cookie.after_metadata_new", 1),
    ("cookie.after_directory", 1),
    ("cookie.after_directory", 2),
    ("cookie.before_ready", 1),
    ("cookie.after_ready", 1),
]


async def identify(
    machine: Machine, store: MetadataStore, *, bookie_id: str = "b1", instance: str = "i1"
) -> Decision:
    """The first steps of a start."""
    async with ThreadWorkers() as workers:
        environment = machine.environment(workers)
        with locked_directories(machine.disk, machine.settings) as directories:
            cookies = CookieManager(store)
            claim = await ensure_identity(environment, directories, cookies, bookie_id, instance)
            return claim.decision


def in_directories(machine: Machine) -> list[Cookie | None]:
    """The cookies of both roots."""
    found = []
    for root in (machine.journal, machine.root / "ledgers"):
        path = root / "COOKIE"
        found.append(decode_cookie(path.read_bytes()) if path.exists() else None)
    return found


async def recorded(store: MetadataStore) -> Cookie | None:
    """The cookie of the metadata store."""
    found = await CookieManager(store).read("b1")
    return None if found is None else found.value


async def test_a_new_bookie_is_stamped_once(machine: Machine, store: MetadataStore) -> None:
    """All three copies are equal and ready; later starts change nothing."""
    assert await identify(machine, store) is Decision.STAMP
    cookie = await recorded(store)
    assert cookie is not None
    assert cookie.state is CookieState.READY
    assert in_directories(machine) == [cookie, cookie]
    assert cookie.journal_dirs == (str(machine.journal),)
    assert len(cookie.unique_id) == 32
    assert await identify(machine, store) is Decision.START
    assert in_directories(machine) == [cookie, cookie]


@pytest.mark.parametrize("first", STEPS)
@pytest.mark.parametrize("second", [None, *STEPS])
async def test_an_interrupted_stamping_is_resumed(
    machine: Machine,
    store: MetadataStore,
    first: tuple[str, int],
    second: tuple[str, int] | None,
) -> None:
    """After a crash at any step, and after a second one; the unique id stays the first one."""
    unique_ids: set[str] = set()
    for step in (first, second):
        if step is None:
            continue
        machine.failpoints = KillAt(*step)
        try:
            await identify(machine, store)
        except Killed:
            cookie = await recorded(store)
            assert cookie is not None
            unique_ids.add(cookie.unique_id)
    machine.failpoints = Failpoints()
    await identify(machine, store)
    cookie = await recorded(store)
    assert cookie is not None
    assert cookie.state is CookieState.READY
    assert in_directories(machine) == [cookie, cookie]
    assert unique_ids == {cookie.unique_id}
    assert await identify(machine, store) is Decision.START


async def test_stamping_is_durable_before_it_is_ready(
    machine: Machine, store: MetadataStore
) -> None:
    """A power cut after the last step finds the cookies in both directories."""
    await identify(machine, store)
    after = machine.without_power("off")
    assert in_directories(after) == in_directories(machine)


@pytest.mark.parametrize("root", ["journal", "ledgers"])
async def test_a_directory_that_changed_in_between_is_not_resumed(
    machine: Machine, store: MetadataStore, root: str
) -> None:
    """Data without a cookie belongs to somebody else."""
    machine.failpoints = KillAt("cookie.after_metadata_new", 1)
    with pytest.raises(Killed):
        await identify(machine, store)
    machine.failpoints = Failpoints()
    stray = machine.root / root / "00000001.journal"
    stray.write_bytes(b"data")
    with pytest.raises(CookieError, match="not empty"):
        await identify(machine, store)
    stray.unlink()
    assert await identify(machine, store) is Decision.RESUME


@pytest.mark.parametrize("root", ["journal", "ledgers"])
async def test_a_missing_cookie_is_never_made_again(
    machine: Machine, store: MetadataStore, root: str
) -> None:
    """This holds for the cookie of an exchanged disk, and for that in the metadata."""
    await identify(machine, store)
    path = machine.root / root / "COOKIE"
    kept = path.read_bytes()
    path.unlink()
    for _ in range(2):
        with pytest.raises(CookieError, match=r"lost or replaced; .* `bookie cookie delete b1`"):
            await identify(machine, store)
    assert not path.exists()
    path.write_bytes(kept)
    await store.delete(keys.cookie("b1"))
    for _ in range(2):
        with pytest.raises(CookieError, match="has no cookie of b1; type `bookie cookie restore`"):
            await identify(machine, store)
    assert await recorded(store) is None


async def test_another_identity_is_refused(
    machine: Machine, store: MetadataStore, tmp_path: Path
) -> None:
    """Another id, another cluster, other directories; in one sentence that says what differs."""
    await identify(machine, store)
    with pytest.raises(CookieError, match=r"has a cookie of bookie b1 .* or empty directories"):
        await identify(machine, store, bookie_id="b2")
    with pytest.raises(CookieError, match="instance id"):
        await identify(machine, store, instance="i2")
    with pytest.raises(CookieError, match="director"):
        await identify(Machine(tmp_path / "other"), store)
    assert await identify(machine, store) is Decision.START


async def test_a_cookie_that_cannot_be_read_is_refused(
    machine: Machine, store: MetadataStore
) -> None:
    """Damaged, or of a newer version; it is left as it is."""
    await identify(machine, store)
    path = machine.journal / "COOKIE"
    kept = path.read_bytes()
    for damaged in (b"", b"nonsense", kept[:-5], kept.replace(b"cookie 1", b"cookie 2")):
        path.write_bytes(damaged)
        with pytest.raises(CookieError, match="cannot be read"):
            await identify(machine, store)
        assert path.read_bytes() == damaged
    path.write_bytes(kept)
    record = await store.get(keys.cookie("b1"))
    assert record is not None
    newer = record.value.replace(b"cookie 1", b"cookie 2")
    await store.put(keys.cookie("b1"), newer, version=record.version)
    with pytest.raises(FormatError, match="newer"):
        await identify(machine, store)


async def test_two_processes_that_stamp_one_id_do_not_both_win(
    machine: Machine, store: MetadataStore, tmp_path: Path
) -> None:
    """The metadata store decides; the loser refuses."""

    class Late(CookieManager):
        """Somebody else is faster, after the look and before the write."""

        async def read(self, bookie_id: str) -> None:
            found = await super().read(bookie_id)
            assert found is None
            await identify(Machine(tmp_path / "faster"), store)

    async with ThreadWorkers() as workers:
        environment = machine.environment(workers)
        with (
            locked_directories(machine.disk, machine.settings) as directories,
            pytest.raises(BadVersionError),
        ):
            await ensure_identity(environment, directories, Late(store), "b1", "i1")
    assert in_directories(machine) == [None, None]


async def test_a_cookie_is_written_whole_or_not_at_all(machine: Machine) -> None:
    """A temporary file that a crash left is written over."""
    machine.journal.mkdir(parents=True)
    (machine.journal / "COOKIE.tmp").write_bytes(b"half")
    with locked_directories(machine.disk, machine.settings) as directories:
        assert directories.is_empty(directories.journal)
        directories.write_cookie(directories.journal, encode_cookie(OURS))
        assert directories.read_cookie(directories.journal) == encode_cookie(OURS)
        assert directories.read_cookie(directories.ledgers) is None
    assert sorted(path.name for path in machine.journal.iterdir()) == ["COOKIE", "LOCK"]
