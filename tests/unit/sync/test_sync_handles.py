"""The verbs without an event loop: what they return and raise, from one thread and from many."""

from __future__ import annotations

import inspect
import pydoc
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import assert_type

import pytest

import bookie.sync
from bookie.api import UNCLAIMED, BookKeeper, Cursors
from bookie.errors import (
    BadRequestError,
    ClientClosedError,
    LedgerClosedError,
    LedgerFencedError,
    NoSuchLedgerError,
    OperationTimeoutError,
    UnauthorizedError,
)
from bookie.sync import SyncBookKeeper, SyncCursors, SyncWriter
from bookie.testing import SyncBookieCluster


def test_what_is_written_is_read(bk: SyncBookKeeper) -> None:
    """Single and many appends, their ids, and the three ways to read them again."""
    with bk.create_ledger(custom_metadata={"for": b"test"}) as writer:
        assert writer.append(b"0") == 0
        assert writer.append_many([b"1", b"2"]) == range(1, 3)
        assert (writer.last_entry_id, writer.last_add_confirmed, writer.length) == (2, 2, 3)
        assert not writer.is_under_replicated
    assert writer.is_closed
    reader = bk.open_ledger(writer.ledger_id)
    assert reader.is_closed
    assert [entry.payload for entry in reader.read()] == [b"0", b"1", b"2"]
    assert [entry.entry_id for entry in reader.read(1, 1)] == [1]
    assert [len(batch) for batch in reader.read_batches()] == [3]
    assert [entry.payload for entry in reader.read_unconfirmed()] == [b"0", b"1", b"2"]
    assert [entry.payload for entry in reader.tail(2)] == [b"2"]
    assert reader.metadata.custom_metadata == {"for": b"test"}


def test_ledgers_are_listed_described_and_deleted(bk: SyncBookKeeper) -> None:
    """The verbs of the client that concern no handle."""
    ids = []
    for _ in range(3):
        with bk.create_ledger() as writer:
            ids.append(writer.ledger_id)
    assert list(bk.list_ledgers()) == ids
    assert list(bk.list_ledgers(after=ids[0])) == ids[1:]
    assert bk.ledger_metadata(ids[0]).is_closed
    assert bk.explain_ledger(ids[0]).metadata.ledger_id == ids[0]
    assert len(bk.bookies()) == 3
    assert bk.instance_id
    bk.delete_ledger(ids[0])
    with pytest.raises(NoSuchLedgerError):
        bk.open_ledger(ids[0])


def test_forwarded_verbs_show_their_arguments() -> None:
    """`help` shows the arguments and the text of the async verb, and the synchronous handle."""
    verb = SyncBookKeeper.create_ledger
    shown = inspect.signature(verb)
    assert shown.parameters == inspect.signature(BookKeeper.create_ledger).parameters
    assert shown.return_annotation is SyncWriter
    text = pydoc.render_doc(verb)
    assert "create_ledger in module bookie.sync.client" in text
    assert "ensemble_size: the number of bookies" in text
    assert "async with" not in text
    assert inspect.signature(SyncCursors.commit) == inspect.signature(Cursors.commit)


def test_shown_properties_are_read_only_and_have_a_docstring(bk: SyncBookKeeper) -> None:
    for value in vars(SyncWriter).values():
        if isinstance(value, property):
            assert inspect.getdoc(value)
    with bk.create_ledger() as writer:
        assert_type(writer.last_entry_id, int)
        assert writer.last_entry_id == -1
        with pytest.raises(AttributeError):
            writer.last_entry_id = 7  # type: ignore[assignment]


def test_misspelt_words_of_forwarded_verbs_fail_in_a_type_checker(bk: SyncBookKeeper) -> None:
    """Each fault needs the comment that silences `make types`; a needless comment fails, too."""
    with pytest.raises(TypeError):
        bk.create_ledger(digest="crc32c")  # type: ignore[call-arg]
    with pytest.raises(BadRequestError):
        bk.create_log("orders", partitions="two")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        bk.delete_log()  # type: ignore[call-arg]
    with bk.create_ledger() as writer:
        assert_type(writer, SyncWriter)
    assert_type(bk.list_groups(), Sequence[str])


def test_a_ledger_without_writer_is_claimed(bookies: SyncBookieCluster) -> None:
    """As `bookie ledger create` leaves it to `bookie ledger append`."""
    with bookies.connect() as creator:
        created = creator.create_ledger(custom_metadata={UNCLAIMED: b""})
    with bookies.connect() as bk:
        with bk.claim_ledger(created.ledger_id) as writer:
            assert writer.append(b"claimed") == 0
        with pytest.raises(LedgerClosedError):
            bk.claim_ledger(created.ledger_id)


def test_errors_are_those_of_the_async_api(bk: SyncBookKeeper) -> None:
    """Classes and messages cross the threads."""
    writer = bk.create_ledger(password=b"secret")
    with pytest.raises(BadRequestError):
        writer.append("text")  # type: ignore[arg-type]
    with pytest.raises(UnauthorizedError, match=f"ledger {writer.ledger_id}"):
        bk.open_ledger(writer.ledger_id)
    reader = bk.open_ledger(writer.ledger_id, password=b"secret", recover=True)
    assert reader.is_closed
    with pytest.raises(LedgerFencedError) as failed:
        writer.append(b"late")
    assert not failed.value.retryable


def test_a_closed_client_refuses(bookies: SyncBookieCluster) -> None:
    """Also its writers and iterators; closing twice is no error."""
    client = bookies.connect()
    with pytest.raises(ClientClosedError):
        client.create_ledger()
    client.open()
    with pytest.raises(BadRequestError):
        client.open()
    writer = client.create_ledger()
    writer.append(b"entry")
    tail = client.open_ledger(writer.ledger_id).tail()
    assert next(tail).payload == b"entry"
    client.close()
    client.close()
    assert not client.is_open
    with pytest.raises(ClientClosedError):
        writer.append(b"late")
    with pytest.raises(ClientClosedError):
        next(tail)


def test_a_call_that_takes_too_long_is_given_up(bookies: SyncBookieCluster) -> None:
    """Its entry may be written all the same, and here it is."""
    with bookies.connect() as bk, bk.create_ledger() as writer:
        for number in range(2):
            bookies.pause(number)
        with pytest.raises(OperationTimeoutError, match="unknown"):
            writer.append(b"slow", timeout=0.05)
        for number in range(2):
            bookies.resume(number)
        assert writer.append(b"next") == 1


def test_deferred_entries_are_forced(bk: SyncBookKeeper) -> None:
    """`force` waits for the sync."""
    with bk.create_ledger(deferred_sync=True) as writer:
        writer.append_many([b"1", b"2"])
        writer.force()


def test_many_threads_share_one_writer(bk: SyncBookKeeper) -> None:
    """Each append has an id of its own, and all entries are there."""
    with bk.create_ledger() as writer:

        def work(thread: int) -> list[tuple[int, bytes]]:
            payloads = [b"%d/%d" % (thread, number) for number in range(20)]
            return [(writer.append(payload), payload) for payload in payloads]

        with ThreadPoolExecutor(8) as threads:
            written = [pair for pairs in threads.map(work, range(8)) for pair in pairs]
    reader = bk.open_ledger(writer.ledger_id)
    with ThreadPoolExecutor(4) as threads:
        seen = threads.map(lambda _: [(e.entry_id, e.payload) for e in reader.read()], range(4))
    assert list(seen) == [sorted(written)] * 4


async def test_a_thread_with_a_running_loop_must_not_wait() -> None:
    """It would block the loop, which would be hard to find."""
    client = bookie.sync.connect("memory://nowhere")
    with pytest.raises(BadRequestError, match=r"bookie\.connect"):
        client.open()


async def test_a_cell_of_a_notebook_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel runs cells in its loop, and each blocks it."""
    name = "ipykernel.kernelapp"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with pytest.raises(bookie.errors.NoSuchKeyError):
        bookie.sync.connect("memory://nowhere").open()


def test_a_process_shares_a_client_for_each_set_of_arguments(bookies: SyncBookieCluster) -> None:
    """The same arguments give the same client, until somebody closes it."""
    first = bookie.sync.shared_client(bookies.uri)
    other = bookie.sync.shared_client(bookies.uri, add_timeout_seconds=3)
    try:
        assert bookie.sync.shared_client(bookies.uri) is first
        assert other is not first
        first.close()
        again = bookie.sync.shared_client(bookies.uri)
        assert again is not first
        assert list(again.list_ledgers()) == []
        again.close()
    finally:
        other.close()
