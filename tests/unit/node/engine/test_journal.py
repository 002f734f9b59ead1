"""The journal thread's work, call by call: group commit, syncs, rolls, full and broken devices."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bookie.env import ThreadWorkers
from bookie.errors import DiskFullError
from bookie.node.engine.files import create_file, read_header
from bookie.node.engine.format.blocks import FILE_HEADER_SIZE_BYTES, FileHeader, FileKind
from bookie.node.engine.format.records import LacRecord, LinkRecord, encode_lac, parse_records
from bookie.node.engine.journal.group_commit import (
    BUFFERS_PER_BLOCK_MAX,
    BlockDone,
    JournalRequest,
    JournalWriter,
    RequestKind,
    journal_path,
)
from bookie.node.engine.scan import ScannedBlock, blocks
from tests.unit.node.engine.faulty_disk import FaultyDisk
from tests.unit.node.engine.machine import KIB, Machine

FILE_BYTES = 64 * KIB


class Journal:
    """A writer on a small first file, what it posted, and what the files say."""

    def __init__(self, root: Path, **changes: object) -> None:
        self.machine = Machine(root)
        self.machine.changes = {
            "journal_file_bytes_max": FILE_BYTES,
            "block_bytes_max": 16 * KIB,
            **changes,
        }
        self.disk: FaultyDisk = self.machine.disk
        self.disk.make_directory(str(self.machine.journal))
        self.done: list[BlockDone] = []
        self.reserve_released = 0
        numbers: Iterator[int] = iter(range(2, 100))
        self.writer = JournalWriter(
            self.machine.environment(ThreadWorkers()),
            self.machine.settings,
            lambda: next(numbers),
            self._release_reserve,
        )
        header = FileHeader(FileKind.JOURNAL, 1, b"n" * 16, 512)
        file = create_file(self.disk, str(self.machine.journal), header, FILE_BYTES)
        path = journal_path(str(self.machine.journal), 1)
        self.mark = self.writer.start(
            header, file, path, FILE_BYTES, LinkRecord(77, b"p" * 16, 7777)
        )
        self.disk.calls.clear()

    def _release_reserve(self) -> None:
        self.reserve_released += 1

    def handle(self, *items: JournalRequest) -> None:
        """The thread's work on everything in its queue."""
        self.writer.handle(list(items), self.done.append)

    def scan(self, number: int) -> list[ScannedBlock]:
        """The valid blocks of a file."""
        file = self.disk.open(journal_path(str(self.machine.journal), number))
        return list(blocks(file, read_header(file), FILE_HEADER_SIZE_BYTES, 0))

    def size(self, number: int) -> int:
        """The size of a file."""
        return Path(journal_path(str(self.machine.journal), number)).stat().st_size


@pytest.fixture(name="journal")
def _journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path)
    yield journal
    journal.disk.heal()
    journal.writer.close()


def ignore(request: JournalRequest) -> None:
    """Nobody waits."""


def append(
    size: int = 100, *, synced: bool = True, essential: bool = False, ledger_id: int = 7
) -> JournalRequest:
    """One record of `size` bytes with its header."""
    data = encode_lac(ledger_id, bytes(size - len(encode_lac(ledger_id, b""))))
    return JournalRequest(
        RequestKind.APPEND,
        ignore,
        [data],
        len(data),
        1,
        synced=synced,
        essential=essential,
    )


def ask(kind: RequestKind) -> JournalRequest:
    """A request without records."""
    return JournalRequest(kind, ignore)


def io_calls(disk: FaultyDisk) -> list[str]:
    """The writes and syncs of journal files, in order."""
    return [call.name for call in disk.calls if call.name in ("pwritev", "fdatasync")]


def test_everything_that_is_queued_is_one_block_one_write_one_sync(journal: Journal) -> None:
    """And one completion, with the requests in the order in which they came."""
    requests = [append(100 + i, ledger_id=i) for i in range(50)]
    journal.handle(*requests)
    assert io_calls(journal.disk) == ["pwritev", "fdatasync"]
    (done,) = journal.done
    assert done.requests == requests
    (block,) = journal.scan(1)
    records = [record for _, record in parse_records(memoryview(block.body), 51)]
    assert isinstance(records[0], LinkRecord)
    assert [r.ledger_id for r in records[1:] if isinstance(r, LacRecord)] == list(range(50))


def test_each_request_learns_where_its_records_stand(journal: Journal) -> None:
    """File number and offset lead back to the same bytes, in every block of every file."""
    requests = [append(1000 + i, ledger_id=i) for i in range(200)]
    for start in range(0, 200, 9):
        journal.handle(*requests[start : start + 9])
    assert {request.file_number for request in requests} == {1, 2, 3, 4}
    for request in requests:
        path = journal_path(str(journal.machine.journal), request.file_number)
        data = journal.disk.open(path).pread(request.size_bytes, request.offset)
        assert data == b"".join(request.buffers)


def test_blocks_end_at_their_limits(journal: Journal) -> None:
    """Bytes and buffers; a single request above the limit is a block of its own."""
    journal.handle(*[append(6000) for _ in range(6)])
    assert [len(done.requests) for done in journal.done] == [2, 2, 2]
    journal.done.clear()
    journal.handle(append(100), append(20 * KIB), append(100))
    assert [len(done.requests) for done in journal.done] == [1, 1, 1]


def test_a_block_has_no_more_buffers_than_one_write_takes(tmp_path: Path) -> None:
    """So that it stays one system call."""
    journal = Journal(tmp_path, block_bytes_max=FILE_BYTES)
    journal.handle(*[append(20) for _ in range(BUFFERS_PER_BLOCK_MAX + 1)])
    assert [len(done.requests) for done in journal.done] == [BUFFERS_PER_BLOCK_MAX, 1]
    journal.writer.close()


@pytest.mark.parametrize("in_order", [True, False])
def test_a_block_that_no_file_takes_has_one_of_its_own(tmp_path: Path, *, in_order: bool) -> None:
    """With room for all of it, and it is whole after the journal was closed."""
    journal = Journal(tmp_path, block_bytes_max=FILE_BYTES)
    journal.handle(*[append(KIB) for _ in range(FILE_BYTES // KIB)])
    current = journal.writer.current
    assert current.durable_upto == current.end > FILE_BYTES
    assert journal.size(current.header.number) >= current.end + current.header.alignment
    before = journal.scan(current.header.number)
    journal.writer.close(in_order=in_order)
    assert journal.scan(current.header.number) == before
    room = 0 if in_order else current.header.alignment
    assert journal.size(current.header.number) == current.end + room


def test_a_barrier_ends_its_block_which_is_synced(journal: Journal) -> None:
    """The mark is the block's end, even if the block holds deferred adds only."""
    barrier = ask(RequestKind.BARRIER)
    journal.handle(append(synced=False), barrier, append(synced=False))
    assert [len(done.requests) for done in journal.done] == [2, 1]
    assert io_calls(journal.disk) == ["pwritev", "fdatasync", "pwritev"]
    first, second = journal.scan(1)
    assert barrier.mark is not None
    assert barrier.mark.offset == first.end == second.offset
    assert barrier.mark.sequence == first.header.sequence
    assert barrier.mark.nonce == b"n" * 16


def test_a_barrier_of_an_idle_journal_marks_its_end(journal: Journal) -> None:
    """Nothing is written for it."""
    barrier = ask(RequestKind.BARRIER)
    journal.handle(barrier)
    assert barrier.mark == journal.mark
    assert io_calls(journal.disk) == []


def test_deferred_adds_alone_are_not_synced(journal: Journal) -> None:
    """With any synced record in the block, they are; a force makes up for all of them."""
    journal.handle(append(synced=False), append(synced=False))
    assert io_calls(journal.disk) == ["pwritev"]
    journal.handle(append(synced=False), append(synced=True))
    assert io_calls(journal.disk) == ["pwritev", "pwritev", "fdatasync"]
    journal.handle(ask(RequestKind.FORCE))
    assert io_calls(journal.disk)[3:] == [], "all is durable already"
    journal.handle(append(synced=False))
    journal.handle(ask(RequestKind.FORCE))
    assert io_calls(journal.disk)[3:] == ["pwritev", "fdatasync"]


def test_durable_upto_moves_only_with_a_sync(journal: Journal) -> None:
    """Each block says how far the file had been synced when it was written."""
    journal.handle(append(synced=False))
    journal.handle(append(synced=False))
    journal.handle(append())
    journal.handle(append())
    one, two, three, four = journal.scan(1)
    assert one.header.durable_upto == FILE_HEADER_SIZE_BYTES
    assert two.header.durable_upto == FILE_HEADER_SIZE_BYTES
    assert three.header.durable_upto == FILE_HEADER_SIZE_BYTES
    assert four.header.durable_upto == three.end == four.offset


def test_an_idle_journal_vouches_for_its_last_block(journal: Journal) -> None:
    """The empty block says that everything before it is durable, and is durable itself."""
    journal.handle(append(synced=False))
    journal.disk.calls.clear()
    journal.handle(ask(RequestKind.MARKER))
    assert io_calls(journal.disk) == ["fdatasync", "pwritev", "fdatasync"]
    data, vouching = journal.scan(1)
    assert vouching.header.durable_upto == data.end
    assert (vouching.header.record_count, len(vouching.body)) == (0, 0)


def test_blocks_stand_at_boundaries_and_sequences_rise(tmp_path: Path) -> None:
    """At 4096 bytes as at 512, also across files."""
    journal = Journal(tmp_path, block_alignment_bytes=4096)
    for _ in range(40):
        journal.handle(append(3000))
    journal.writer.close()
    found = [block for number in (1, 2, 3) for block in journal.scan(number)]
    assert [block.header.sequence for block in found] == list(range(1, 41))
    assert {block.offset % 512 for block in found} == {0}
    later = [block for number in (2, 3) for block in journal.scan(number)]
    assert {block.offset % 512 for block in later} == {0}


def writes_and_syncs(journal: Journal) -> list[int | bool]:
    """The size of each write, and of each sync whether it is in place; then both are forgotten."""
    calls, journal.disk.calls = journal.disk.calls, []
    return [
        call.in_place if call.name == "fdatasync" else call.size
        for call in calls
        if call.name in ("pwritev", "fdatasync")
    ]


def test_small_blocks_replace_zeros_that_were_synced(journal: Journal) -> None:
    """One sync in many makes new space durable; zeros never leave the allocated space."""
    journal.handle(append())
    assert writes_and_syncs(journal) == [FILE_BYTES - FILE_HEADER_SIZE_BYTES, False]
    journal.handle(append())
    journal.handle(append(1000))
    assert writes_and_syncs(journal) == [512, True, 1536, True]
    assert journal.size(1) == FILE_BYTES
    journal.handle(append(), ask(RequestKind.ROLL))
    writes_and_syncs(journal)
    journal.handle(append())
    _, in_place = writes_and_syncs(journal)
    assert in_place is False


def test_a_sync_is_in_place_only_if_all_its_blocks_are(journal: Journal) -> None:
    """A block that was written before without a sync counts, too."""
    journal.handle(append(synced=False))
    journal.handle(append())
    assert writes_and_syncs(journal) == [FILE_BYTES - FILE_HEADER_SIZE_BYTES, 512, False]
    journal.handle(append(synced=False))
    journal.handle(append())
    assert writes_and_syncs(journal) == [512, 512, True]


def test_no_zeros_stand_behind_a_large_block(tmp_path: Path) -> None:
    """A small block behind it is in new space again."""
    journal = Journal(tmp_path, block_bytes_max=32 * KIB)
    journal.handle(append(20 * KIB))
    assert writes_and_syncs(journal) == [20 * KIB + 512, False]
    journal.handle(append())
    rest = FILE_BYTES - FILE_HEADER_SIZE_BYTES - 20 * KIB - 512
    assert writes_and_syncs(journal) == [rest, False]
    journal.handle(append(20 * KIB))
    assert writes_and_syncs(journal) == [20 * KIB + 512, True]
    journal.writer.close()


def test_more_space_is_not_in_place(growing: Journal) -> None:
    """Its size has to become durable, which is a change of the file system."""
    for _ in range(200):
        journal_size = growing.size(1)
        growing.handle(append())
        in_place = writes_and_syncs(growing)[-1]
        if growing.size(1) > journal_size:
            assert in_place is False
            return
    raise AssertionError("the file never grew")


def test_a_roll_syncs_the_old_file_before_the_new_one_takes_a_record(journal: Journal) -> None:
    """The new file is durable first, name and header; the old one is cut to its end, durably.

    So whatever the new one takes, the old one says that it exists.
    """
    while not journal.done or journal.done[-1].created == ():
        journal.handle(append(9000, synced=False))
    assert journal.done[-1].created == ((2, journal_path(str(journal.machine.journal), 2)),)
    (rolled,) = journal.done[-1].rolled
    assert rolled.number == 1
    old_blocks = journal.scan(1)
    assert rolled.size_bytes == old_blocks[-1].end == journal.size(1)

    calls = [
        (call.name, Path(call.path).name)
        for call in journal.disk.calls
        if call.name not in ("open", "pread", "close")
    ]
    start = calls.index(("create", "00000002.journal.tmp"))
    assert calls[start:] == [
        ("create", "00000002.journal.tmp"),
        ("pwritev", "00000002.journal.tmp"),
        ("fdatasync", "00000002.journal.tmp"),
        ("rename", "00000002.journal"),
        ("sync_directory", journal.machine.journal.name),
        ("fdatasync", "00000001.journal"),
        ("truncate", "00000001.journal"),
        ("fdatasync", "00000001.journal"),
        ("pwritev", "00000002.journal"),
    ]

    (first,) = journal.scan(2)
    link = next(record for _, record in parse_records(memoryview(first.body), 2))
    assert link == LinkRecord(1, b"n" * 16, rolled.size_bytes)


def test_the_first_block_names_the_predecessor_that_boot_found(journal: Journal) -> None:
    """And only the first block does."""
    journal.handle(append())
    journal.handle(append())
    first, second = journal.scan(1)
    (_, link), _ = parse_records(memoryview(first.body), 2)
    assert link == LinkRecord(77, b"p" * 16, 7777)
    assert second.header.record_count == 1


def fill(journal: Journal) -> None:
    """Up to the point where 9000 bytes do not fit any more."""
    while journal.writer.current.end + 10 * KIB <= FILE_BYTES:
        journal.handle(append(9000))
    journal.done.clear()


def test_a_full_device_refuses_plain_records_and_nothing_else(journal: Journal) -> None:
    """Empty records and essential ones that fit go through. Refused ones are not written."""
    fill(journal)
    journal.disk.fail("create", ".journal", errno.ENOSPC, times=99)
    plain, fence, barrier, force = (
        append(9000),
        append(200, essential=True),
        ask(RequestKind.BARRIER),
        ask(RequestKind.FORCE),
    )
    journal.handle(plain, fence, force, barrier)
    (done,) = journal.done
    assert done.requests == [plain, fence, force, barrier]
    assert isinstance(plain.error, DiskFullError)
    assert (fence.error, force.error, barrier.error) == (None, None, None)
    assert journal.reserve_released == 0
    last = journal.scan(1)[-1]
    assert last.header.record_count == 1
    assert fence.offset == last.body_offset
    assert barrier.mark is not None
    assert barrier.mark.offset == last.end
    assert list(journal.machine.journal.glob("*.tmp")) == []


def test_essential_records_take_the_reserve(journal: Journal) -> None:
    """Fences and recovery adds go on in a small file made of it."""
    fill(journal)
    journal.disk.fail("create", ".journal", errno.ENOSPC)
    plain, essential = append(5000), append(9000, essential=True)
    journal.handle(plain, essential)
    assert isinstance(plain.error, DiskFullError)
    assert essential.error is None
    assert journal.reserve_released == 1
    assert essential.file_number == journal.writer.current.header.number != 1
    (block,) = journal.scan(essential.file_number)
    assert block.header.record_count == 2


def test_a_file_of_the_reserve_may_be_small(journal: Journal) -> None:
    """If 16 MiB do not fit, 1 MiB suffices. A block stays within the allocated bytes."""
    fill(journal)
    journal.disk.fail("create", ".journal", errno.ENOSPC, times=2)
    fence = append(9000, essential=True)
    journal.handle(fence)
    assert fence.error is None
    assert journal.size(fence.file_number) == 1024 * KIB


def test_a_block_that_is_too_large_for_what_is_left_is_refused(journal: Journal) -> None:
    """A block never goes beyond what was allocated: on a full device that would be a failure."""
    fill(journal)
    journal.disk.fail("create", ".journal", errno.ENOSPC, times=3)
    fence = append(60_000, essential=True)
    journal.handle(fence)
    assert isinstance(fence.error, DiskFullError)
    assert journal.size(1) == FILE_BYTES


def test_without_reserve_even_essential_records_are_refused(journal: Journal) -> None:
    """A fence is called durable only after its sync."""
    fill(journal)
    journal.disk.fail("create", ".journal", errno.ENOSPC, times=99)
    fence, force = append(9000, essential=True), ask(RequestKind.FORCE)
    journal.handle(fence, force)
    assert isinstance(fence.error, DiskFullError)
    assert force.error is None


@pytest.mark.parametrize("call", ["create", "pwritev", "fdatasync"])
def test_a_full_device_may_show_at_any_step_of_a_new_file(journal: Journal, call: str) -> None:
    """Without allocation ahead, writing its header is the first step to fail."""
    fill(journal)
    journal.disk.fail(call, ".journal.tmp", errno.ENOSPC, times=99)
    plain, force = append(9000), ask(RequestKind.FORCE)
    journal.handle(plain, force)
    assert isinstance(plain.error, DiskFullError)
    assert force.error is None
    assert list(journal.machine.journal.glob("*.tmp")) == []
    journal.disk.heal()
    journal.handle(accepted := append(9000))
    assert accepted.error is None


def test_a_full_device_that_has_room_again_takes_records(journal: Journal) -> None:
    """The refusal was of that request, not of the journal."""
    fill(journal)
    journal.disk.fail("create", ".journal", errno.ENOSPC)
    journal.handle(append(9000))
    accepted = append(9000)
    journal.handle(accepted)
    assert accepted.error is None
    assert accepted.file_number == journal.writer.current.header.number != 1


@pytest.mark.parametrize(
    ("call", "part", "number"),
    [
        ("pwritev", "00000001.journal", errno.EIO),
        ("pwritev", "00000001.journal", errno.ENOSPC),
        ("fdatasync", "00000001.journal", errno.EIO),
    ],
)
def test_a_failed_write_or_sync_ends_the_thread_and_is_not_retried(
    journal: Journal, call: str, part: str, number: int
) -> None:
    """The thread hands nothing back. It stops writing, even if a write would succeed."""
    journal.handle(append())
    journal.done.clear()
    journal.disk.fail(call, part, number)
    with pytest.raises(OSError, match=r"\[Errno"):
        journal.handle(append(), append())
    assert journal.done == []


@pytest.mark.parametrize(
    "break_it",
    [
        lambda disk: disk.fail("create", ".journal.tmp", errno.EIO),
        lambda disk: disk.fail("pwritev", ".journal.tmp", errno.EIO),
        lambda disk: disk.fail("fdatasync", ".journal.tmp", errno.EIO),
        lambda disk: disk.fail("rename", ".journal", errno.EIO),
        lambda disk: disk.fail("sync_directory", "", errno.EIO),
        lambda disk: disk.fail("fdatasync", "00000001.journal", errno.EIO),
        lambda disk: disk.fail("truncate", "00000001.journal", errno.EIO),
    ],
)
def test_a_roll_that_fails_acknowledges_nothing(
    journal: Journal, break_it: Callable[[FaultyDisk], object]
) -> None:
    """For each step that may fail."""
    fill(journal)
    journal.handle(append(synced=False))
    journal.done.clear()
    break_it(journal.disk)
    with pytest.raises(OSError, match=r"\[Errno"):
        journal.handle(append(9000))
    assert journal.done == []


@pytest.mark.parametrize(("in_order", "room"), [(True, 0), (False, 512)])
def test_closing_gives_back_what_was_never_used(
    journal: Journal, *, in_order: bool, room: int
) -> None:
    """The file ends with its last block, or says with a little room that no other file follows."""
    journal.handle(append())
    end = journal.writer.current.end
    assert journal.size(1) == FILE_BYTES
    journal.writer.close(in_order=in_order)
    assert journal.size(1) == end + room


def test_room_for_a_block_is_left_whatever_is_vouched_for(journal: Journal) -> None:
    """Only a roll cuts a file right behind its last block: then another one follows."""
    alignment = journal.writer.current.header.alignment
    journal.disk.fail("create", ".journal", errno.ENOSPC, times=99)
    sizes = [20_000, 15_000, 10_000, 5000, *([300] * 20), *([100] * 20)]
    for size in sizes:
        journal.handle(append(size))
        journal.handle(ask(RequestKind.MARKER))
        journal.handle(ask(RequestKind.MARKER))
        assert journal.size(1) - journal.writer.current.end >= alignment
    assert journal.size(1) - journal.writer.current.end < 3 * alignment, "it came to that"


@pytest.fixture(name="growing")
def _growing(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(
        tmp_path, journal_file_bytes_max=4 * FILE_BYTES, journal_allocate_bytes=FILE_BYTES
    )
    yield journal
    journal.disk.heal()
    journal.writer.close()


def test_a_file_reserves_its_space_in_steps(growing: Journal) -> None:
    """One step ahead of what is written, up to its full size; then a new one begins."""
    for _ in range(7):
        growing.handle(append(30 * KIB))
    assert growing.size(1) == 4 * FILE_BYTES
    grown = [call for call in growing.disk.calls if call.name == "allocate"]
    assert [(call.offset, call.size) for call in grown] == [
        (step * FILE_BYTES, FILE_BYTES) for step in (1, 2, 3)
    ]
    growing.handle(append(45 * KIB))
    assert growing.writer.current.header.number == 2
    assert growing.size(2) == 2 * FILE_BYTES
    assert len(growing.scan(1)) == 7
    assert growing.size(1) < 4 * FILE_BYTES


def test_a_file_has_its_size_durably_before_a_block_relies_on_it(growing: Journal) -> None:
    """With a sync that is due anyway, or, where no block before was synced, with one of its own."""
    growing.handle(append(30 * KIB))
    growing.handle(append(30 * KIB, synced=False))
    growing.handle(append(50 * KIB, synced=False))
    growing.handle(append(50 * KIB, synced=False))
    calls = [
        call.name
        for call in growing.disk.calls
        if call.name in ("allocate", "pwritev", "fdatasync") and call.path.endswith(".journal")
    ]
    assert calls == [
        *("pwritev", "fdatasync"),
        *("allocate", "fdatasync", "pwritev"),
        "pwritev",
        *("allocate", "fdatasync", "pwritev"),
    ]
    assert growing.writer.current.durable_upto < growing.writer.current.end


def test_a_sync_that_is_due_makes_the_next_step_durable(growing: Journal) -> None:
    """So that no block waits for a sync of the size alone."""
    for _ in range(7):
        growing.handle(append(30 * KIB))
    calls = [call.name for call in growing.disk.calls if call.path.endswith("01.journal")]
    threes = list(zip(calls, calls[1:], calls[2:], strict=False))
    assert ("pwritev", "allocate", "fdatasync") in threes
    assert all(three[2] == "fdatasync" for three in threes if three[1] == "allocate")


def test_a_file_that_cannot_grow_takes_what_is_essential_in_a_small_one(growing: Journal) -> None:
    """The failed step gives back what it got; plain records are refused as at a failed roll."""
    growing.handle(append(30 * KIB))
    growing.disk.fail("allocate", ".journal", errno.ENOSPC)
    growing.disk.fail("create", ".journal", errno.ENOSPC, times=2)
    plain, fence = append(40 * KIB), append(1 * KIB, essential=True)
    growing.handle(plain, fence)
    assert isinstance(plain.error, DiskFullError)
    assert fence.error is None
    assert fence.file_number == 1
    assert growing.size(1) == FILE_BYTES
    assert "truncate" in growing.disk.names_called("00000001.journal")
    growing.disk.heal()
    after = append(40 * KIB)
    growing.handle(after)
    assert (after.error, after.file_number) == (None, 1)


def test_a_device_that_fails_while_a_file_grows_ends_the_thread(growing: Journal) -> None:
    """Anything but a full device is a failure."""
    growing.handle(append(30 * KIB))
    growing.disk.fail("allocate", ".journal", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        growing.handle(append(40 * KIB))


def test_a_roll_on_request_begins_a_new_file(growing: Journal) -> None:
    """Records of the same group stay in the old file. A roll without room is skipped."""
    first, roll = append(), ask(RequestKind.ROLL)
    growing.handle(first, roll)
    assert (first.file_number, roll.error) == (1, None)
    assert [rolled.number for rolled in growing.done[-1].rolled] == [1]
    assert growing.writer.current.header.number == 2
    growing.disk.fail("create", ".journal", errno.ENOSPC)
    growing.handle(ask(RequestKind.ROLL), after := append())
    assert after.file_number == 2
    assert growing.writer.current.header.number == 2
