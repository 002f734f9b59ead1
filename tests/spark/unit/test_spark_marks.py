"""Marks of checkpoints, and what proves that an older version has written a target."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from bookie.errors import BadRequestError
from bookie.spark.jobs.export_target import WrittenOffsets, is_written_by
from bookie.spark.jobs.marks import (
    JobMark,
    Progress,
    claim_checkpoint,
    new_mark,
    read_mark,
    read_progress,
    write_mark,
)
from bookie.spark.jobs.small_files import SmallFiles


class FilesInMemory(SmallFiles):
    """By path: directories and files, as a file system has them."""

    def __init__(self) -> None:
        self.by_path: dict[str, dict[str, str]] = {}
        self.writes_left: int | None = None
        """The process is killed in the write after these, when the former text is deleted."""

    def texts(self, path: str) -> dict[str, str]:
        return self.by_path.get(path, {})

    def has_any(self, path: str, ending: str) -> bool:
        return any(one.startswith(path) and one.endswith(ending) for one in self.by_path)

    def write(self, path: str, text: str, *, replaces: bool = False) -> None:
        if path in self.by_path and not replaces:
            raise FileExistsError(path)
        self.by_path.pop(path, None)
        if self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left < 0:
                raise KeyboardInterrupt
        self.by_path[path] = {"part": text}


@pytest.fixture
def files() -> FilesInMemory:
    return FilesInMemory()


def migration(log: str = "", **logs: str) -> JobMark:
    return new_mark("migrate-from-kafka", log, "/c", logs)


def test_topics_that_come_later_belong_to_the_checkpoint_as_well(files: FilesInMemory) -> None:
    """Each has a log of its name; one that was made anew is refused, unless it is taken over."""
    claim_checkpoint(files, migration(a="1"), is_proven=True)
    first = read_mark(files, "/c")
    claim_checkpoint(files, migration(b="2"), is_proven=True)
    found = read_mark(files, "/c")
    assert found is not None
    assert first is not None
    assert found.logs == {"a": "1", "b": "2"}
    assert found.id == first.id
    with pytest.raises(BadRequestError, match="the log b was deleted and made anew since /c was"):
        claim_checkpoint(files, migration(a="1", b="3"), is_proven=True)
    assert read_mark(files, "/c") == found
    claim_checkpoint(files, migration(a="1", b="3"), is_proven=True, takes_over=True)
    claim_checkpoint(files, migration(a="1", b="3"), is_proven=True)


@pytest.mark.parametrize("writes", range(3))
def test_a_mark_is_not_lost_by_two_kills(files: FilesInMemory, writes: int) -> None:
    """The second process finds the mark that the first one was about to replace."""
    claim_checkpoint(files, migration(a="1"), is_proven=True)
    for log, left in (("b", 1), ("c", writes)):
        files.writes_left = left
        with suppress(KeyboardInterrupt):
            claim_checkpoint(files, migration(**{log: "2"}), is_proven=True)
        assert read_mark(files, "/c") is not None
    files.writes_left = None
    claim_checkpoint(files, migration(d="3"), is_proven=True)
    found = read_mark(files, "/c")
    assert found is not None
    assert found.logs.keys() >= {"a", "b", "d"}


@pytest.mark.parametrize("writes", range(3))
def test_a_mark_is_not_lost_while_it_is_replaced(files: FilesInMemory, writes: int) -> None:
    """Whenever the process is killed, the checkpoint has the former mark or the new one."""
    claim_checkpoint(files, migration(a="1"), is_proven=True)
    first = read_mark(files, "/c")
    assert first is not None
    files.writes_left = writes
    with suppress(KeyboardInterrupt):
        claim_checkpoint(files, migration(b="2"), is_proven=True)
    files.writes_left = None
    found = read_mark(files, "/c")
    assert found in (first, replace(first, logs={"a": "1", "b": "2"}))
    with pytest.raises(BadRequestError, match="the log a was deleted and made anew"):
        claim_checkpoint(files, migration(a="3"), is_proven=False)
    claim_checkpoint(files, migration(c="3"), is_proven=False)
    found = read_mark(files, "/c")
    assert found is not None
    assert (found.id, found.logs["c"]) == (first.id, "3")


@pytest.mark.parametrize(
    ("mark", "reason"),
    [
        (migration("one", one="1"), "belongs to logs that have the names of topics; give the log"),
        (new_mark("ingest", "a", "/c", {"a": "1"}), "belongs to bookie spark migrate-from-kafka"),
    ],
)
def test_a_marked_checkpoint_is_for_its_job(
    files: FilesInMemory, mark: JobMark, reason: str
) -> None:
    """Also if the log has records of it, and whatever is to be taken over."""
    claim_checkpoint(files, migration(a="1", one="1"), is_proven=True)
    with pytest.raises(BadRequestError, match=reason):
        claim_checkpoint(files, mark, is_proven=True, takes_over=True)


def test_a_checkpoint_without_a_mark_needs_a_proof(files: FilesInMemory) -> None:
    with pytest.raises(BadRequestError, match="/c did not write to logs that have the names of"):
        claim_checkpoint(files, migration(a="1"), is_proven=False)
    assert read_mark(files, "/c") is None
    claim_checkpoint(files, migration(a="1"), is_proven=False, takes_over=True)
    assert read_mark(files, "/c") is not None


def test_two_jobs_that_mark_a_directory_at_once(files: FilesInMemory) -> None:
    """One of them is told."""
    write_mark(files, "/out", JobMark("export", "1"))
    with pytest.raises(BadRequestError, match="another job has just begun to use /out"):
        write_mark(files, "/out", JobMark("export", "2"))
    assert read_mark(files, "/out") == JobMark("export", "1")


def test_what_a_checkpoint_says(files: FilesInMemory) -> None:
    assert read_progress(files, "/c") == Progress(None, {}, -1)
    files.by_path["/c/metadata"] = {"metadata": '{"id":"q"}'}
    assert read_progress(files, "/c") == Progress("q", {}, -1)
    files.by_path["/c/commits"] = {"0": "v1\n{}", "1": "v1\n{}"}
    files.by_path["/c/offsets"] = {
        "1": 'v1\n{}\n{"a": {"0": 3}}',
        "2": 'v1\n{}\n{"a": {"0": 5, "id": "x"}}',
        "3": "v1\n{}\n7\n8",
        "4": "v1\n{}\nno json",
    }
    offsets = {1: {"a": {"0": 3}}, 2: {"a": {"0": 5, "id": "x"}}, 3: None, 4: None}
    assert read_progress(files, "/c") == Progress("q", offsets, 1)


OFFSETS: dict[int, Any] = {4: {"a": {"0": 10}}, 5: {"a": {"0": 20, "1": 5, "id": "x"}}}


@pytest.mark.parametrize(
    ("written", "is_proven"),
    [
        ([(5, "a", 0, 10, 19)], True),
        ([(5, "a", 0, 12, 15), (5, "a", 1, 0, 4)], True),  # a part of it is enough
        ([(1, "a", 0, 0, 3), (5, "a", 0, 10, 19)], True),  # Spark has forgotten batch 1
        ([(1, "a", 0, 0, 3)], False),
        ([], False),
        ([(5, "b", 0, 10, 19)], False),
        ([(5, "a", 0, 10, 20)], False),
        ([(5, "a", 0, 9, 19)], False),
        ([(5, "a", 2, 0, 1)], False),
        ([(5, "a", 0, 10, 19), (6, "a", 0, 20, 21)], False),
        ([(5, "a", 0, 10, 19), (1, "b", 0, 0, 3)], False),
    ],
)
def test_what_proves_that_a_checkpoint_has_written_a_target(
    written: list[tuple[int, str, int, int, int]], is_proven: bool
) -> None:
    found = [WrittenOffsets(*one) for one in written]
    assert is_written_by(Progress("q", OFFSETS, 5), "a", found) is is_proven
    assert not is_written_by(Progress("q", {5: None, 4: [7]}, 5), "a", found)
