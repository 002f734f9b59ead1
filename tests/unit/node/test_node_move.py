"""The cookies follow moved directories: what is refused, and an error at every call of the disk."""

from __future__ import annotations

import errno
import itertools
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from bookie.cluster.cookie import Cookie, CookieState, decode_cookie, encode_cookie
from bookie.cluster.cookies import CookieManager
from bookie.config import StorageSettings
from bookie.env import Environment, Failpoints, PosixDisk, SystemClock, ThreadWorkers, open_lmdb
from bookie.errors import BadVersionError, BookieError, CookieError, DirectoryLockedError
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned
from bookie.node.move import Move, move_directories
from tests.unit.node.engine.faulty_disk import FaultyDisk

CALLS = ("lock", "unlink", "create", "pwritev", "fdatasync", "rename", "sync_directory", "pread")


@dataclass
class Stopped:
    """A stopped bookie whose directories can be moved, and its cookies."""

    path: Path
    store: MetadataStore
    disk: FaultyDisk = field(default_factory=FaultyDisk)
    journal: Path = field(init=False)
    ledgers: Path = field(init=False)

    def __post_init__(self) -> None:
        self.journal, self.ledgers = self.path / "old" / "journal", self.path / "old" / "ledgers"

    async def stamp(self) -> Cookie:
        """Make the directories with a file each, and equal cookies of a state with a history."""
        cookie = Cookie(
            bookie_id="b1",
            journal_dirs=(str(self.journal),),
            ledger_dirs=(str(self.ledgers),),
            instance_id="i1",
            unique_id="u1",
            state=CookieState.READY,
            incarnation="c1",
            state_number=7,
        )
        for directory in (self.journal, self.ledgers / "index", self.ledgers / "logs"):
            directory.mkdir(parents=True)
        (self.journal / "00000001.journal").touch()
        (self.ledgers / "index" / "data.mdb").touch()
        for directory in (self.journal, self.ledgers):
            (directory / "COOKIE").write_bytes(encode_cookie(cookie))
        await self.cookies.create(replace(cookie, is_in_doubt=True))
        return cookie

    @property
    def cookies(self) -> CookieManager:
        """Those of the metadata store."""
        return CookieManager(self.store)

    def rename(self, *, journal: str = "", ledgers: str = "") -> None:
        """Move one directory or both, as an operator does."""
        for name, target in (("journal", journal), ("ledgers", ledgers)):
            if target:
                (self.path / target).parent.mkdir(exist_ok=True)
                shutil.move(getattr(self, name), self.path / target)
                setattr(self, name, self.path / target)

    async def move(self, *, accept_older: bool = False) -> Move:
        """The work of the command, with settings that name the present directories."""
        async with ThreadWorkers() as workers:
            environment = Environment(SystemClock(), self.disk, workers, open_lmdb, Failpoints())
            storage = StorageSettings(journal_dir=self.journal, ledgers_dir=self.ledgers)
            return await move_directories(
                environment, storage, self.cookies, "b1", "i1", accept_older=accept_older
            )

    async def all_cookies(self) -> list[Cookie]:
        """Of the metadata store, the journal and the ledgers."""
        found = await self.cookies.read("b1")
        assert found is not None
        in_directories = [(root / "COOKIE").read_bytes() for root in (self.journal, self.ledgers)]
        return [found.value, *map(decode_cookie, in_directories)]

    def change(self, root: Path, **fields: object) -> None:
        """Give the cookie in a directory other values."""
        path = root / "COOKIE"
        cookie = replace(decode_cookie(path.read_bytes()), **fields)  # type: ignore[arg-type]
        path.write_bytes(encode_cookie(cookie))


@pytest.fixture(name="bookie")
async def _bookie(tmp_path: Path) -> AsyncIterator[Stopped]:
    async with open_store(f"memory://{tmp_path.name}") as store:
        yield Stopped(tmp_path, store)


@pytest.mark.parametrize(
    "targets",
    [{"journal": "new/j"}, {"ledgers": "new/l"}, {"journal": "new/j", "ledgers": "new/l"}],
)
async def test_the_cookies_follow(bookie: Stopped, targets: dict[str, str]) -> None:
    """They name the new paths, and say of the bookie's state what they said before."""
    stamped = await bookie.stamp()
    bookie.change(bookie.journal, is_settled=False)
    bookie.rename(**targets)
    moved = await bookie.move()
    wanted = replace(
        stamped, journal_dirs=(str(bookie.journal),), ledger_dirs=(str(bookie.ledgers),)
    )
    assert await bookie.all_cookies() == [
        replace(wanted, is_in_doubt=True),
        replace(wanted, is_settled=False),
        wanted,
    ]
    assert (moved.before, moved.rewritten) == (replace(stamped, is_in_doubt=True), 3)
    assert (await bookie.move()).rewritten == 0
    assert bookie.disk.names_called("COOKIE").count("rename") == 2


@pytest.mark.parametrize("name", CALLS)
async def test_an_error_at_any_call_is_finished_by_another_run(
    bookie: Stopped, name: str, tmp_path: Path
) -> None:
    """However many calls of one kind went well before the one that fails."""
    stamped = await bookie.stamp()
    for run in itertools.count():
        bookie.rename(journal=f"new{run}/j", ledgers=f"new{run}/l")
        bookie.disk.fail(name, str(tmp_path), errno.EIO, passes=run)
        try:
            await bookie.move()
            failed = False
        except (OSError, BookieError):
            failed = True
        bookie.disk.heal()
        before = await bookie.all_cookies()
        assert (len({cookie.journal_dirs for cookie in before}) == 1) or failed
        await bookie.move()
        wanted = replace(
            stamped, journal_dirs=(str(bookie.journal),), ledger_dirs=(str(bookie.ledgers),)
        )
        assert await bookie.all_cookies() == [replace(wanted, is_in_doubt=True), wanted, wanted]
        if not failed:
            assert run > 0, f"the disk was never asked for {name}"
            return


async def test_the_metadata_store_comes_first(bookie: Stopped) -> None:
    """A copy that stayed in the old place cannot start once a directory was changed."""
    await bookie.stamp()
    bookie.rename(journal="new/j")
    bookie.disk.fail("rename", str(bookie.journal), errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        await bookie.move()
    recorded, in_journal, _ = await bookie.all_cookies()
    assert recorded.journal_dirs == (str(bookie.journal),) != in_journal.journal_dirs


WRONG: dict[str, tuple[Callable[[Stopped], object], str]] = {
    "another bookie": (
        lambda b: b.change(b.ledgers, bookie_id="b2"),
        "ledgers belongs to bookie b2, and its cookie differs .* in its bookie id",
    ),
    "another life": (lambda b: b.change(b.journal, unique_id="u2"), "in its unique id"),
    "another cluster": (lambda b: b.change(b.journal, instance_id="i2"), "in its instance id"),
    "not ready": (lambda b: b.change(b.journal, state=CookieState.NEW), "is NEW, not READY"),
    "no cookie": (lambda b: (b.ledgers / "COOKIE").unlink(), "there is no cookie in .*ledgers: mo"),
    "no directory": (lambda b: shutil.rmtree(b.journal), "there is no cookie in .*journal"),
    "damaged": (lambda b: (b.journal / "COOKIE").write_text("x"), "journal cannot be read: not"),
    "older": (lambda b: b.change(b.ledgers, state_number=6), "holds state 6 .* last one is 7"),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_other_directories_are_refused(bookie: Stopped, wrong: str) -> None:
    """Nothing is made, changed or locked then."""
    await bookie.stamp()
    bookie.rename(journal="new/journal", ledgers="new/ledgers")
    act, sentence = WRONG[wrong]
    act(bookie)
    before = sorted(bookie.path.rglob("*")), await bookie.cookies.read("b1")
    with pytest.raises(CookieError, match=sentence):
        await bookie.move()
    assert (sorted(bookie.path.rglob("*")), await bookie.cookies.read("b1")) == before


async def test_an_older_state_stays_one(bookie: Stopped) -> None:
    """Accepted on request; the numbers stay, and so the next start notices."""
    await bookie.stamp()
    bookie.change(bookie.ledgers, state_number=6)
    bookie.rename(ledgers="new/ledgers")
    await bookie.move(accept_older=True)
    assert [cookie.state_number for cookie in await bookie.all_cookies()] == [7, 7, 6]


async def test_swapped_directories_are_refused(bookie: Stopped) -> None:
    """Also after a start in that order, which leaves empty folders in the journal's directory."""
    await bookie.stamp()
    for folder in ("index", "logs"):
        (bookie.journal / folder).mkdir()
    journal, ledgers = bookie.journal, bookie.ledgers
    bookie.journal, bookie.ledgers = ledgers, journal
    with pytest.raises(CookieError, match=r"old/ledgers and .*old/journal are swapped"):
        await bookie.move()
    (journal / "00000001.journal").unlink()
    with pytest.raises(CookieError, match="are swapped"):
        await bookie.move()
    bookie.journal, bookie.ledgers = journal, ledgers
    assert (await bookie.move()).rewritten == 0


@pytest.mark.parametrize("root", ["journal", "ledgers"])
async def test_directories_in_use_are_refused(bookie: Stopped, root: str) -> None:
    """By the lock that a bookie holds from its start to its end."""
    await bookie.stamp()
    bookie.rename(journal="new/journal", ledgers="new/ledgers")
    lock = PosixDisk().lock(str(bookie.path / "new" / root / "LOCK"))
    try:
        with pytest.raises(DirectoryLockedError):
            await bookie.move()
    finally:
        lock.close()
    assert (await bookie.move()).rewritten == 3


class Started(CookieManager):
    """The bookie starts, and raises its number, between the look and the change."""

    async def read(self, bookie_id: str) -> Versioned[Cookie] | None:
        """The state before the start."""
        found = await super().read(bookie_id)
        assert found is not None
        await super().write(replace(found.value, state_number=8), found.version)
        return found


async def test_a_bookie_that_starts_meanwhile_wins(bookie: Stopped) -> None:
    """Its cookie is not overwritten with what it was before."""
    await bookie.stamp()
    bookie.rename(journal="new/journal")
    async with ThreadWorkers() as workers:
        environment = Environment(SystemClock(), bookie.disk, workers, open_lmdb, Failpoints())
        storage = StorageSettings(journal_dir=bookie.journal, ledgers_dir=bookie.ledgers)
        with pytest.raises(BadVersionError, match="make sure that the bookie is stopped"):
            await move_directories(environment, storage, Started(bookie.store), "b1", "i1")
    assert (await bookie.all_cookies())[0].state_number == 8


@pytest.mark.parametrize(
    ("instance_id", "state"), [("i2", CookieState.READY), ("i1", CookieState.NEW)]
)
async def test_only_what_joined_this_cluster_moves(
    bookie: Stopped, instance_id: str, state: CookieState
) -> None:
    """The command refuses a bookie of another cluster, one without a cookie, and a new one."""
    with pytest.raises(CookieError, match="no cookie of bookie b1: put it back"):
        await bookie.move()
    cookie = await bookie.stamp()
    found = await bookie.cookies.read("b1")
    assert found is not None
    await bookie.cookies.write(replace(cookie, instance_id=instance_id, state=state), found.version)
    with pytest.raises(CookieError, match="has not finished its first start in this cluster"):
        await bookie.move()
