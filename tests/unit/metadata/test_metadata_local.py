"""The local store alone: what it refuses to open, what its processes share, how it fails."""

from __future__ import annotations

import asyncio
import os
import resource
import struct
import threading
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import lmdb
import pytest

from bookie.env import boot_time_seconds
from bookie.errors import (
    BookieError,
    ConfigurationError,
    FormatError,
    MetadataUnavailableError,
    NoSuchKeyError,
    SessionLostError,
)
from bookie.metadata.connect import open_store
from bookie.metadata.local import environment, tree
from bookie.metadata.local.backend import LocalStore
from bookie.metadata.local.environment import LocalEnvironment
from bookie.metadata.local.sessions import SessionFile, SessionReaper
from bookie.metadata.local.tree import SessionRow, TreeWriter
from bookie.metadata.model import Commit, Put, Resync
from bookie.metadata.session import EXPIRY_EVENTS, SessionEvent
from bookie.metadata.store import MetadataStore
from bookie.metadata.watches import Subscription

T = TypeVar("T")


async def _next(stream: AsyncIterator[T]) -> T:
    async with asyncio.timeout(60):
        return await anext(stream)


async def _refusal(directory: Path) -> BookieError:
    with pytest.raises(BookieError) as caught:
        async with open_store(f"local://{directory}"):
            pass
    assert "\n" not in str(caught.value)
    assert str(directory) in str(caught.value)
    return caught.value


def _write_meta(directory: Path, text: bytes) -> None:
    with lmdb.open(str(directory), max_dbs=8) as environment:
        meta = environment.open_db(b"meta")
        with environment.begin(write=True) as transaction:
            transaction.put(b"format", text, db=meta)


def test_each_commit_syncs_data_and_meta_page(tmp_path: Path) -> None:
    """Without the sync of the meta page, a power cut takes the last commits back."""
    opened = environment.acquire(tmp_path / "store")
    flags = opened._lmdb.flags()
    environment.release(opened)
    assert (flags["sync"], flags["metasync"]) == (True, True)
    assert (flags["writemap"], flags["map_async"]) == (False, False)


# ---- what is refused


async def test_a_missing_parent_directory_is_not_created(tmp_path: Path) -> None:
    error = await _refusal(tmp_path / "typo" / "metadata")
    assert isinstance(error, ConfigurationError)
    assert not (tmp_path / "typo").exists()


async def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text("x")
    assert isinstance(await _refusal(tmp_path / "metadata"), ConfigurationError)


async def test_a_directory_that_cannot_be_written_is_refused() -> None:
    # /sys refuses even root.
    assert isinstance(await _refusal(Path("/sys/kernel/metadata")), ConfigurationError)


async def test_a_directory_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "journal.txt").write_text("mine")
    assert isinstance(await _refusal(tmp_path), FormatError)
    assert os.listdir(tmp_path) == ["journal.txt"]


async def test_a_file_that_is_not_lmdb_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"junk" * 4096)
    assert isinstance(await _refusal(tmp_path), FormatError)


async def test_an_lmdb_environment_of_something_else_is_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), max_dbs=1) as environment:
        environment.open_db(b"ledgers")
    assert isinstance(await _refusal(tmp_path), FormatError)
    with lmdb.open(str(tmp_path), max_dbs=1) as environment, environment.begin() as transaction:
        assert transaction.stat()["entries"] == 1


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    async with open_store(f"local://{tmp_path}"):
        pass
    _write_meta(tmp_path, b"bookie-metadata 3")
    error = await _refusal(tmp_path)
    assert isinstance(error, FormatError)
    assert "newer" in str(error)


async def test_a_format_that_is_too_old_is_refused(tmp_path: Path) -> None:
    async with open_store(f"local://{tmp_path}"):
        pass
    _write_meta(tmp_path, b"bookie-metadata 1")
    error = await _refusal(tmp_path)
    assert type(error) is FormatError
    assert "too old" in str(error)


async def test_after_a_refusal_the_directory_can_be_opened(tmp_path: Path) -> None:
    async with open_store(f"local://{tmp_path}"):
        pass
    _write_meta(tmp_path, b"bookie-metadata 3")
    await _refusal(tmp_path)
    _write_meta(tmp_path, environment.FORMAT)
    async with open_store(f"local://{tmp_path}") as store:
        await store.put("/a", b"")


async def test_names_with_spaces_and_escapes_are_directories_too(tmp_path: Path) -> None:
    async with open_store(f"local://{tmp_path}/my%20meta"):
        pass
    assert (tmp_path / "my meta" / "data.mdb").exists()


def _error_in_a_fork(directory: Path) -> str:
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that forking with threads is unwise
        child = os.fork()
    if child == 0:
        try:
            environment.acquire(directory)
        except ConfigurationError as error:
            os.write(write_end, str(error).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    message = os.read(read_end, 1000).decode()
    os.close(read_end)
    os.waitpid(child, 0)
    return message


async def test_a_forked_process_is_told_to_spawn(tmp_path: Path) -> None:
    async with open_store(f"local://{tmp_path}"):
        assert "spawn" in _error_in_a_fork(tmp_path)


# ---- what is shared


async def test_stores_of_one_process_share_an_environment(tmp_path: Path) -> None:
    """Case 30."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "metadata")
    (tmp_path / "metadata").mkdir()
    async with open_store(f"local://{tmp_path}/metadata") as first:
        async with open_store(f"local://{link}") as second:
            assert isinstance(first, LocalStore)
            assert isinstance(second, LocalStore)
            assert first._environment is second._environment
            await second.put("/a", b"")
        await first.put("/b", b"")
    assert not environment._environments


async def test_two_event_loops_share_a_store(tmp_path: Path) -> None:
    async def count(store: MetadataStore) -> None:
        for _ in range(20):
            record = await store.get("/n")
            version = record.version if record else -1
            value = b"%d" % (int(record.value) + 1 if record else 1)
            try:
                await store.put("/n", value, version=version)
            except BookieError:
                continue

    def other_loop() -> None:
        async def run() -> None:
            async with open_store(f"local://{tmp_path}") as store:
                await count(store)

        asyncio.run(run())

    async with open_store(f"local://{tmp_path}") as store, asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.to_thread(other_loop))
        await count(store)
    assert not environment._environments


async def test_closing_leaves_no_session_and_no_file(tmp_path: Path) -> None:
    async with open_store(f"local://{tmp_path}") as store:
        await store.put("/e", b"", ephemeral=True)
        assert len(os.listdir(tmp_path / "sessions")) == 1
    assert os.listdir(tmp_path / "sessions") == []


async def test_a_cancelled_opening_leaves_no_session(tmp_path: Path) -> None:
    async def open_and_close() -> None:
        async with open_store(f"local://{tmp_path}"):
            pass

    async with open_store(f"local://{tmp_path}") as store:
        assert isinstance(store, LocalStore)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(open_and_close())
            await asyncio.sleep(0)
            task.cancel()
        assert task.cancelled()
        await store.put("/after", b"")  # behind what the cancelled opening left to do
        assert len(os.listdir(tmp_path / "sessions")) == 1
        with store._require_open().read() as tree:
            assert list(tree.sessions()) == [store._session]


async def test_leaving_while_cancelled_ends_everything(tmp_path: Path) -> None:
    """A cancellation that is pending when the store is left ends none of the steps early."""
    async with open_store(f"local://{tmp_path}") as other:
        before, task = asyncio.all_tasks(), asyncio.current_task()
        assert task is not None
        opened = open_store(f"local://{tmp_path}")
        store = await opened.__aenter__()
        await store.put("/mine", b"", ephemeral=True)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opened.__aexit__(None, None, None)
        task.uncancel()
        assert asyncio.all_tasks() == before
        assert not await other.exists("/mine")
        assert len(list((tmp_path / "sessions").iterdir())) == 1


def test_a_session_file_that_cannot_be_written_is_not_left(tmp_path: Path) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(MetadataUnavailableError, match="File too large"):
            SessionFile(tmp_path, b"s" * 16, 1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors


async def test_a_refused_write_tells_of_the_lost_session_first(tmp_path: Path) -> None:
    async with (
        open_store(f"local://{tmp_path}") as store,
        store.session_events() as events,
    ):
        assert isinstance(store, LocalStore)
        environment, session = store._require_open(), store._session
        await environment.submit(lambda tree: tree.end_session(session))
        with pytest.raises(SessionLostError):
            await store.put("/a", b"")
        assert not store.is_session_certain
        assert [await anext(events) for _ in EXPIRY_EVENTS] == list(EXPIRY_EVENTS)


async def test_a_cancelled_write_still_happens(tmp_path: Path) -> None:
    async with open_store(f"local://{tmp_path}") as store:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(store.put("/a", b""))
            await asyncio.sleep(0)
            task.cancel()
        assert task.cancelled()
        await store.put("/b", b"")
        assert await store.exists("/a")


async def test_many_writes_share_commits_and_fail_alone(tmp_path: Path) -> None:
    async def attempt(store: MetadataStore, i: int) -> str:
        try:
            await (store.delete(f"/no/{i}") if i % 3 == 0 else store.put(f"/a/{i}", b""))
        except NoSuchKeyError:
            return "refused"
        return "done"

    async with open_store(f"local://{tmp_path}") as store, asyncio.TaskGroup() as tasks:
        outcomes = [tasks.create_task(attempt(store, i)) for i in range(300)]
    assert [task.result() for task in outcomes] == [
        "refused" if i % 3 == 0 else "done" for i in range(300)
    ]


# ---- watches


async def test_a_watcher_beyond_the_log_resyncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "LOG_COMMITS_MAX", 4)
    async with open_store(f"local://{tmp_path}") as store, store.watch("/") as changes:
        assert isinstance(store, LocalStore)
        environment = store._require_open()

        def burst(tree: TreeWriter) -> None:
            for i in range(9):
                tree.transact([Put(f"/{i}", b"")], store._session)

        await environment.submit(burst)
        assert isinstance(await _next(changes), Resync)
        stat = await store.put("/later", b"")
        change = await _next(changes)
        assert isinstance(change, Commit)
        assert change.revision == stat.revision


async def test_without_the_bell_polling_delivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie.metadata.local.sessions.CommitNotifier.notify", lambda *_: None)
    async with open_store(f"local://{tmp_path}") as store, store.watch("/") as changes:
        await store.put("/a", b"")
        assert isinstance(await _next(changes), Commit)


async def test_a_consumer_far_behind_gets_one_resync() -> None:
    subscription: Subscription[Commit | Resync] = Subscription(overflow=Resync(), backlog_max=3)
    for version in range(1, 6):
        subscription.push(Commit(version, ()))
    assert [await _next(subscription) for _ in range(2)] == [Resync(), Commit(5, ())]


# ---- failures


async def test_a_full_store_refuses_and_stays_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalEnvironment.__init__, "__defaults__", (2 * 1024 * 1024,))
    async with open_store(f"local://{tmp_path}") as store:
        stored = 0
        while stored < 16:
            await store.put(f"/big/{stored:03}", b"x" * 100_000)
            stored += 1
        with pytest.raises(MetadataUnavailableError, match="full"):
            await store.put("/big/last", b"x" * 500_000)
        assert len(await store.get_children("/big")) == stored
        await store.delete("/big/000")
        await store.put("/small", b"x")


async def test_nobody_waits_for_a_writer_that_died_of_a_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths: list[object] = []
    monkeypatch.setattr(threading, "excepthook", deaths.append)

    def bug(_: TreeWriter) -> None:
        raise ZeroDivisionError

    async with open_store(f"local://{tmp_path}") as store:
        assert isinstance(store, LocalStore)
        environment = store._require_open()
        victims = [environment.submit(bug), environment.submit(lambda _: None)]
        for victim in victims:
            with pytest.raises(MetadataUnavailableError, match="has ended"):
                await asyncio.wait_for(victim, 60)
        with pytest.raises(MetadataUnavailableError, match="has ended"):
            await asyncio.wait_for(store.put("/a", b""), 60)
    assert len(deaths) == 1
    async with open_store(f"local://{tmp_path}") as store:
        await store.put("/a", b"")


async def test_a_scan_of_large_values_goes_in_small_steps(tmp_path: Path) -> None:
    async with open_store(f"local://{tmp_path}") as store:
        assert isinstance(store, LocalStore)
        for i in range(12):
            await store.put(f"/big/{i:02}", bytes([i]) * 400_000)
        with store._require_open().read() as tree:
            records, after = tree.child_records("/big", "", b"", 256, 1_000_000)
        assert ([record.name for record in records], after) == (["00", "01", "02"], "02")
        assert [r.value[0] async for r in store.scan_children("/big")] == list(range(12))


async def test_the_disk_holds_what_the_tables_say(tmp_path: Path) -> None:
    """Case 30."""
    async with open_store(f"local://{tmp_path}") as store:
        stat = await store.put("/a/b", b"value")
    with lmdb.open(str(tmp_path), max_dbs=8) as environment:
        records, log = environment.open_db(b"records"), environment.open_db(b"log")
        with environment.begin() as transaction:
            data = bytes(transaction.get(b"/a/b", db=records) or b"")
            change = bytes(transaction.get(struct.pack(">Q", stat.version), db=log) or b"")
    assert struct.unpack_from(">QQ", data) == (stat.version, stat.version)
    assert data[32:48] == bytes(16)
    assert data[48:] == b"value"
    assert change == b"\x01\x00\x04/a/b"


# ---- sessions


class _Peers:
    """A directory of session files, and clocks that a test sets."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.monotonic = 1000.0
        self.boot_time = boot_time_seconds()
        monkeypatch.setattr("time.monotonic", lambda: self.monotonic)
        monkeypatch.setattr("time.clock_gettime", lambda _: self.boot_time)

    def advance(self, seconds: float) -> None:
        self.monotonic += seconds
        self.boot_time += seconds


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Peers:
    return _Peers(tmp_path, monkeypatch)


def _row(reaper: SessionReaper) -> SessionRow:
    return SessionRow(30.0, reaper._boot_id, 1)


def test_a_free_lock_is_death(peers: _Peers) -> None:
    reaper = SessionReaper(peers.directory, 1.0)
    sessions = {b"s" * 16: _row(reaper)}
    file = SessionFile(peers.directory, b"s" * 16, 30.0)
    assert reaper.inspect(sessions, b"own") == []
    os.close(file._fd)  # as the kernel does when the owner is killed
    assert reaper.inspect(sessions, b"own") == [b"s" * 16]
    assert reaper.inspect(sessions, b"s" * 16) == []


def test_a_missing_file_or_another_boot_is_death(peers: _Peers) -> None:
    reaper = SessionReaper(peers.directory, 1.0)
    assert reaper.inspect({b"s" * 16: _row(reaper)}, b"own") == [b"s" * 16]
    file = SessionFile(peers.directory, b"t" * 16, 30.0)
    assert reaper.inspect({b"t" * 16: SessionRow(30.0, "other boot", 1)}, b"own") == [b"t" * 16]
    file.close()


def test_a_silent_owner_is_ended_after_its_timeout_and_a_third(peers: _Peers) -> None:
    reaper = SessionReaper(peers.directory, 1.0)
    sessions = {b"s" * 16: _row(reaper)}
    file = SessionFile(peers.directory, b"s" * 16, 30.0)
    silent_seconds = 0
    while not reaper.inspect(sessions, b"own"):
        peers.advance(1.0)
        silent_seconds += 1
    assert 40 <= silent_seconds <= 42
    file.close()


def test_a_late_heartbeat_saves_its_owner(peers: _Peers) -> None:
    reaper = SessionReaper(peers.directory, 1.0)
    sessions = {b"s" * 16: _row(reaper)}
    file = SessionFile(peers.directory, b"s" * 16, 30.0)
    for second in range(300):
        peers.advance(1.0)
        if second % 38 == 37:
            file.beat()
        assert reaper.inspect(sessions, b"own") == []
    file.close()


def test_an_inspector_that_was_paused_gives_everybody_new_time(peers: _Peers) -> None:
    reaper = SessionReaper(peers.directory, 1.0)
    sessions = {b"s" * 16: _row(reaper)}
    file = SessionFile(peers.directory, b"s" * 16, 30.0)
    for _ in range(39):
        peers.advance(1.0)
        assert reaper.inspect(sessions, b"own") == []
    peers.advance(3600.0)
    assert reaper.inspect(sessions, b"own") == []
    peers.advance(1.0)
    assert reaper.inspect(sessions, b"own") == []
    file.beat()
    peers.advance(1.0)
    assert reaper.inspect(sessions, b"own") == []
    file.close()


def test_a_suspended_machine_ends_nobody(peers: _Peers) -> None:
    reaper = SessionReaper(peers.directory, 1.0)
    sessions = {b"s" * 16: _row(reaper)}
    file = SessionFile(peers.directory, b"s" * 16, 30.0)
    assert reaper.inspect(sessions, b"own") == []
    peers.boot_time += 8 * 3600.0  # CLOCK_MONOTONIC does not count sleep
    peers.monotonic += 1.0
    assert reaper.inspect(sessions, b"own") == []
    file.beat()
    for _ in range(25):
        peers.advance(1.0)
        assert reaper.inspect(sessions, b"own") == []
    file.close()


async def test_a_heartbeat_just_before_the_burial_saves_its_owner(tmp_path: Path) -> None:
    async with (
        open_store(f"local://{tmp_path}") as owner,
        open_store(f"local://{tmp_path}") as peer,
    ):
        assert isinstance(owner, LocalStore)
        assert isinstance(peer, LocalStore)
        reaper = SessionReaper(tmp_path / "sessions", 1.0)
        session = owner._session
        await peer._require_open().submit(lambda tree: reaper.reap(tree, [session]))
        await owner.put("/still/here", b"", ephemeral=True)


async def test_writes_of_an_ended_session_are_refused_until_it_knows(tmp_path: Path) -> None:
    async with open_store(f"local://{tmp_path}") as store, store.session_events() as events:
        assert isinstance(store, LocalStore)
        environment, session = store._require_open(), store._session
        ending = environment.submit(lambda tree: tree.end_session(session))
        # In the same group as the end, so the store cannot know yet.
        with pytest.raises(BookieError) as caught:
            await store.put("/a", b"")
        await ending
        assert caught.value.retryable
        while await _next(events) is not SessionEvent.SESSION_REESTABLISHED:
            continue
        await store.put("/a", b"")


def test_an_error_of_lmdb_is_an_unavailable_store(tmp_path: Path) -> None:
    """Also where slots of dead readers are looked for: the heartbeat goes on after it."""
    environment = LocalEnvironment(tmp_path / "metadata")
    environment.close()
    with pytest.raises(MetadataUnavailableError):
        environment.forget_dead_readers()
    with pytest.raises(MetadataUnavailableError), environment.read():
        pass
