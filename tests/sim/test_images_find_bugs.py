"""A test of the tests: an engine or a disk with a known bug does not survive its crash images.

Each bug is one that the real code could have, or a disk that does not do what it says. The bug is
there while the workload is recorded. A bug of the engine is also there for the boots on the images.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

import bookie.node.engine.boot.replay
import bookie.node.engine.boot.start
import bookie.node.engine.entry_log
import bookie.node.engine.files
import bookie.node.engine.index.opening
from bookie.config import StorageSettings
from bookie.env import Disk, Environment
from bookie.node.engine.admission import Admission
from bookie.node.engine.checkpoint import Checkpointer
from bookie.node.engine.directories import Directories
from bookie.node.engine.entry_log import EntryLogWriter
from bookie.node.engine.files import TEMPORARY_SUFFIX, file_name
from bookie.node.engine.format.blocks import FileHeader
from bookie.node.engine.format.tail import TAIL_RULES
from bookie.node.engine.index.entry_index import TABLES, Index
from bookie.node.engine.journal.group_commit import BlockDone, JournalRequest, JournalWriter
from bookie.node.engine.reclaim.compaction_log import CompactionLog, LiveScan
from bookie.testing.simulation.disk import SimulatedFile
from bookie.testing.simulation.loop import Mode
from bookie.testing.simulation.machine import SimulatedClock, SimulatedMachine
from tests.sim.crash_images import BrokenPromiseError, try_moments
from tests.sim.script import CHAPTERS, Chapter, changes_of, record

SEEDS = 6
IMAGES_A_MOMENT = 10

Break = Callable[[pytest.MonkeyPatch], Callable[[SimulatedMachine], None] | None]


def syncs_nothing(monkeypatch: pytest.MonkeyPatch) -> Callable[[SimulatedMachine], None]:
    """The device says that it synced."""

    def prepare(machine: SimulatedMachine) -> None:
        machine.disk.sync_files = False

    return prepare


def syncs_no_names(monkeypatch: pytest.MonkeyPatch) -> Callable[[SimulatedMachine], None]:
    """The file system forgets what it was told about directories."""

    def prepare(machine: SimulatedMachine) -> None:
        machine.disk.sync_directories = False

    return prepare


def acknowledges_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal hands a block back, and syncs it then."""
    commit, sync = JournalWriter._commit, JournalWriter._sync

    def broken(
        self: JournalWriter, requests: list[JournalRequest], post: Callable[[BlockDone], None]
    ) -> None:
        monkeypatch.setattr(JournalWriter, "_sync", lambda self: None)
        commit(self, requests, post)
        monkeypatch.setattr(JournalWriter, "_sync", sync)
        sync(self)

    monkeypatch.setattr(JournalWriter, "_commit", broken)


def rolls_without_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next file is begun before the old one is durable."""
    roll, sync, sync_file = JournalWriter._roll, JournalWriter._sync, SimulatedFile.fdatasync

    def of_new_files(self: SimulatedFile) -> None:
        if self.inode.path.endswith(TEMPORARY_SUFFIX):
            sync_file(self)

    def broken(self: JournalWriter, size_bytes: int) -> None:
        monkeypatch.setattr(JournalWriter, "_sync", lambda self: None)
        # The cut is synced as well, and the blocks before it with it.
        monkeypatch.setattr(SimulatedFile, "fdatasync", of_new_files)
        try:
            roll(self, size_bytes)
        finally:
            monkeypatch.setattr(JournalWriter, "_sync", sync)
            monkeypatch.setattr(SimulatedFile, "fdatasync", sync_file)

    monkeypatch.setattr(JournalWriter, "_roll", broken)


def checkpoints_without_a_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark is the end of a block that is written, and not synced."""
    swap = Checkpointer._swap

    def broken(self: Checkpointer) -> object:
        frozen = swap(self)
        frozen.barrier.synced = False
        return frozen

    monkeypatch.setattr(Checkpointer, "_swap", broken)


def renames_without_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file's name is not durable when it is used."""

    def broken(disk: Disk, directory: str, header: FileHeader) -> None:
        path = os.path.join(directory, file_name(header.kind, header.number))
        disk.rename(path + TEMPORARY_SUFFIX, path)

    monkeypatch.setattr(bookie.node.engine.files, "publish_file", broken)
    monkeypatch.setattr(bookie.node.engine.entry_log, "publish_file", broken)


def boots_without_a_log_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a boot wrote anew is committed before it is durable."""
    close = EntryLogWriter._close_file

    def broken(self: EntryLogWriter) -> None:
        if self._file is not None:
            monkeypatch.setattr(type(self._file.file), "fdatasync", lambda self: None)
        try:
            close(self)
        finally:
            monkeypatch.undo()
            monkeypatch.setattr(EntryLogWriter, "_close_file", broken)

    monkeypatch.setattr(EntryLogWriter, "_close_file", broken)


def compacts_without_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index follows into a log that is not durable."""
    steps, sync = CompactionLog.steps, SimulatedFile.fdatasync

    def broken(self: CompactionLog, scanned: LiveScan) -> Iterator[int]:
        monkeypatch.setattr(SimulatedFile, "fdatasync", lambda self: None)
        try:
            yield from steps(self, scanned)
        finally:
            monkeypatch.setattr(SimulatedFile, "fdatasync", sync)

    monkeypatch.setattr(CompactionLog, "steps", broken)


def fences_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fence is answered before it is durable."""
    submit = Admission._request

    def broken(self: Admission, *args: object, essential: bool = False) -> JournalRequest:
        request = submit(self, *args, essential=essential)  # type: ignore[arg-type]  # passed on
        request.synced = not essential
        return request

    monkeypatch.setattr(Admission, "_request", broken)


def forgets_the_name_of_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store makes its file durable, and nobody its name."""

    def open_index(
        environment: Environment,
        settings: StorageSettings,
        directories: Directories,
        *,
        trusted: bool = False,
    ) -> Index:
        size = settings.index_map_bytes
        return Index(environment.open_kv(directories.index, size, TABLES, trusted))

    monkeypatch.setattr(bookie.node.engine.index.opening, "open_index", open_index)
    monkeypatch.setattr(bookie.node.engine.boot.start, "open_index", open_index)


def repeats_nonces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one file are valid in any other, as where it reserves room that had them."""
    monkeypatch.setattr(SimulatedClock, "nonce", lambda self: bytes(16))


def takes_torn_ends_for_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every invalid block is an alarm."""
    monkeypatch.setattr(bookie.node.engine.boot.replay, "evaluate", lambda evidence: TAIL_RULES[0])


BUGS: tuple[Break, ...] = (
    syncs_nothing,
    syncs_no_names,
    acknowledges_before_the_sync,
    rolls_without_a_sync,
    checkpoints_without_a_barrier,
    renames_without_a_sync,
    boots_without_a_log_sync,
    compacts_without_a_sync,
    fences_in_memory,
    forgets_the_name_of_the_index,
)
"""The ways in which an engine or its disk may be wrong."""

FOUND_LATE = (rolls_without_a_sync, checkpoints_without_a_barrier)
"""These show in the last life, whose moments are tried first."""

CHAPTERS_KILLED = tuple(Chapter(chapter.life, "kill") for chapter in CHAPTERS[:4])
"""Kills alone show none of the missing syncs: it is the images that have to."""


@pytest.mark.parametrize("breaks", BUGS, ids=lambda item: item.__name__)
def test_a_bug_is_found(
    breaks: Break, monkeypatch: pytest.MonkeyPatch, report: Callable[[str], None]
) -> None:
    """By some image of some moment of the first few recordings."""
    prepare = breaks(monkeypatch) or (lambda machine: None)
    images = 0
    for seed in range(SEEDS):
        mode = list(Mode)[seed % len(Mode)]
        chapters = CHAPTERS_KILLED
        moments = record(
            seed, mode=mode, interleaving=0.1 * seed, chapters=chapters, prepare=prepare
        )
        if breaks in FOUND_LATE:
            moments = moments[::-1]
        try:
            tally = try_moments(moments, seed, IMAGES_A_MOMENT, changes_of(seed))
        except BrokenPromiseError as error:
            report(f"{breaks.__name__}: found in recording {seed}, {str(error)[:160]}")
            return
        images += tally.images
    pytest.fail(f"{images} images and {breaks.__name__} was not found")


def test_repeated_nonces_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file reserves room that an older one had, nothing else keeps their blocks apart."""
    repeats_nonces(monkeypatch)
    moments = record(1, mode=list(Mode)[1], interleaving=0.1, old_room=True)
    third = [moment for moment in moments if moment.left.lives == 3]
    with pytest.raises(BrokenPromiseError, match=r"is damaged|is missing|other bytes|gone"):
        try_moments(third, 1, IMAGES_A_MOMENT, changes_of(1))


def test_a_false_alarm_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torn end that is taken for damage costs availability; the images have torn ends."""
    moments = record(0)
    takes_torn_ends_for_damage(monkeypatch)
    with pytest.raises(BrokenPromiseError, match="is damaged at offset"):
        try_moments(moments, 0, IMAGES_A_MOMENT, changes_of(0))
