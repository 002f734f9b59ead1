"""The directory of an export belongs to one log and one checkpoint; others are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookie.errors import BadRequestError
from bookie.spark.jobs.export import ExportPlan, export_log, parse_schema
from bookie.spark.jobs.marks import JobMark, read_mark
from bookie.spark.jobs.small_files import FrameFiles, SmallFiles, small_files
from bookie.sync import SyncBookKeeper


class Lake:
    """Exports of one test, with a short name for each directory."""

    def __init__(self, spark: SparkSession, uri: str, bk: SyncBookKeeper, path: Path) -> None:
        self.spark, self.uri, self.bk, self.path = spark, uri, bk, path

    def append(self, log: str, ids: range) -> None:
        """Records with these ids, as JSON."""
        with self.bk.open_log(log) as writer:
            writer.append_many([b'{"id": %d}' % one for one in ids])

    def export(
        self, log: str, target: str, checkpoint: str, *, as_json: bool = False, takes: bool = False
    ) -> int:
        """Export what is new; returns the number of rows."""
        where = str(self.path / target)
        plan = ExportPlan(where)
        if as_json:
            schema = parse_schema("id BIGINT")
            plan = ExportPlan(where, "json", schema, ("_partition",))
        return export_log(
            self.spark,
            self.uri,
            log,
            plan,
            checkpoint=str(self.path / checkpoint),
            takes_over=takes,
        )

    def refused(self, log: str, target: str, checkpoint: str, reason: str) -> None:
        """An export is refused with a sentence, and writes nothing."""
        before = self.files()
        with pytest.raises(BadRequestError, match=reason):
            self.export(log, target, checkpoint)
        assert self.files() == before

    def files(self) -> dict[str, bytes]:
        """All that there is."""
        found = (one for one in self.path.rglob("*") if one.is_file())
        return {str(one): one.read_bytes() for one in found}

    def rows(self, target: str) -> int:
        """How many rows a target has."""
        return self.spark.read.parquet(str(self.path / target / "data")).count()

    def unmark(self, *directories: str) -> None:
        """Make them what older versions have left: without marks, and offsets without ids."""
        for one in directories:
            shutil.rmtree(self.path / one / "_bookie")
            for file in (self.path / one / "offsets").glob("[0-9]*"):
                version, batch, offset = file.read_text().splitlines()
                given = json.loads(offset)
                for of_log in given.values():
                    of_log.pop("id", None)
                file.write_text("\n".join((version, batch, json.dumps(given))))
                (file.parent / f".{file.name}.crc").unlink()


@pytest.fixture
def lake(spark: SparkSession, uri: str, bk: SyncBookKeeper, tmp_path: Path) -> Lake:
    return Lake(spark, uri, bk, tmp_path)


def test_a_target_takes_neither_another_log_nor_another_checkpoint(lake: Lake, log: str) -> None:
    a, b = f"{log}-a", f"{log}-b"
    lake.append(a, range(203))
    lake.append(b, range(10))
    assert lake.export(a, "a", "of-a") == 203
    assert lake.export(b, "b", "of-b") == 10
    lake.refused(b, "a", "of-b", f"/a belongs to the log {a}; export {b} to another directory")
    lake.refused(b, "a", "new", f"/a belongs to the log {a}")
    lake.refused(a, "a", "new", "/a was exported with the checkpoint .*/of-a, which is not .*/new")
    lake.refused(a, "new", "of-a", "of-a belongs to .*/a, and .*/new has no part of it; use a new")
    lake.refused(b, "new", "of-a", f"of-a belongs to the log {a}; export {b} to another directory")
    shutil.rmtree(lake.path / "of-a")
    lake.refused(a, "a", "of-a", "of-a, which was deleted since; export to an empty directory")
    assert lake.rows("a") == 203
    lake.append(b, range(10, 12))
    assert lake.export(b, "b", "of-b") == 2
    assert lake.rows("b") == 12


def test_a_log_that_was_made_anew_is_not_exported_to_the_target_of_the_former(
    lake: Lake, log: str
) -> None:
    lake.append(log, range(20))
    assert lake.export(log, "out", "checkpoint") == 20
    lake.bk.delete_log(log)
    lake.append(log, range(30))
    lake.refused(log, "out", "checkpoint", f"{log} was deleted and made anew since it was exported")
    assert lake.rows("out") == 20
    assert lake.export(log, "out-2", "checkpoint-2") == 30


def test_a_target_of_an_older_version_goes_on_with_its_own_checkpoint(lake: Lake, log: str) -> None:
    """The offsets of its records prove that it is its own; from then on both have marks."""
    a, b = f"{log}-a", f"{log}-b"
    lake.bk.create_log(a, partitions=2)
    for step in range(2):
        lake.append(a, range(100 * step, 100 * step + 20))
        lake.export(a, "a", "of-a", as_json=True)
    lake.append(b, range(30))
    lake.export(b, "b", "of-b")
    lake.unmark("a", "of-a", "b", "of-b")
    others = "did not write; export to an empty directory with a new one, or add --take-over"
    lake.refused(b, "a", "of-b", others)
    lake.refused(b, "a", "of-a", others)
    lake.refused(a, "a", "new", "holds records, and the checkpoint .*/new is new; use the one")
    lake.refused(a, "new", "of-a", "has exported records, and .*/new has none; use a new")
    lake.append(a, range(5))
    assert lake.export(a, "a", "of-a", as_json=True) == 5
    assert lake.rows("a") == 45
    lake.refused(b, "a", "of-b", f"belongs to the log {a}")
    lake.append(b, range(3))
    assert lake.export(b, "b", "of-b") == 3


def test_the_checkpoint_of_another_query_on_the_same_log_is_no_proof(lake: Lake, log: str) -> None:
    """Both have a batch 1, of other records."""
    lake.append(log, range(20))
    lake.export(log, "early", "of-early")
    lake.append(log, range(30))
    lake.export(log, "early", "of-early")
    lake.export(log, "late", "of-late")
    lake.unmark("early", "of-early", "late", "of-late")
    lake.refused(log, "late", "of-early", "did not write")
    lake.refused(log, "early", "of-late", "did not write")


def test_what_was_moved_away_is_taken_over_by_a_word(lake: Lake, log: str) -> None:
    """A job that empties the target is none that an export can tell from another one."""
    lake.append(log, range(20))
    assert lake.export(log, "out", "checkpoint") == 20
    shutil.rmtree(lake.path / "out")
    lake.append(log, range(4))
    lake.refused(log, "out", "checkpoint", "or add --take-over to export only what is new")
    assert lake.export(log, "out", "checkpoint", takes=True) == 4
    lake.append(log, range(2))
    assert lake.export(log, "out", "checkpoint") == 2
    assert lake.rows("out") == 6


def test_an_export_that_was_cut_off_before_its_first_row(lake: Lake, log: str) -> None:
    """The checkpoint is marked, and the target is not."""
    lake.append(log, range(20))
    lake.export(log, "out", "checkpoint")
    shutil.rmtree(lake.path / "out")
    for one in (lake.path / "checkpoint").iterdir():
        if one.name != "_bookie":
            shutil.rmtree(one) if one.is_dir() else one.unlink()
    assert lake.export(log, "out", "checkpoint") == 20
    assert lake.export(log, "out", "checkpoint") == 0


def test_a_log_without_records_is_exported_later(lake: Lake, log: str) -> None:
    lake.bk.create_log(log)
    assert lake.export(log, "out", "checkpoint") == 0
    lake.unmark("out", "checkpoint")
    lake.append(log, range(3))
    assert lake.export(log, "out", "checkpoint") == 3


@pytest.mark.parametrize("kind", ["session", "frames"])
def test_small_files_on_all_ways(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """A client of Spark Connect has frames only."""
    files: SmallFiles = FrameFiles(spark) if kind == "frames" else small_files(spark)
    here = str(tmp_path / "a" / "_bookie")
    assert files.texts(here) == {}
    files.write(here, "first ✓")
    with pytest.raises(FileExistsError):
        files.write(here, "second")
    assert [one.strip() for one in files.texts(here).values()] == ["first ✓"]
    files.write(here, "third", replaces=True)
    assert [one.strip() for one in files.texts(here).values()] == ["third"]
    (tmp_path / "metadata").write_text("x\ny")
    assert files.texts(str(tmp_path / "metadata")) == {"metadata": "x\ny"}
    assert not files.has_any(str(tmp_path / "none"), ".parquet")
    (tmp_path / "data" / "batch=1").mkdir(parents=True)
    assert not files.has_any(str(tmp_path / "data"), ".parquet")
    (tmp_path / "data" / "batch=1" / "a.parquet").write_bytes(b"x")
    assert files.has_any(str(tmp_path / "data"), ".parquet")


def test_a_write_that_is_interrupted_leaves_no_half_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Otherwise the directory would be refused for good. The former text also stays."""
    files, here = small_files(spark), str(tmp_path / "_bookie")
    interrupted = "\ud800"  # this text ends the write after the file was created
    with pytest.raises(UnicodeEncodeError):
        files.write(here, interrupted)
    assert files.texts(here) == {}
    files.write(here, "first")
    with pytest.raises(UnicodeEncodeError):
        files.write(here, interrupted, replaces=True)
    assert files.texts(here) == {"part-0.txt": "first\n"}


@pytest.mark.parametrize("replaces", [False, True])
def test_a_directory_that_another_process_creates_meanwhile(
    spark: SparkSession, tmp_path: Path, replaces: bool
) -> None:
    """One of the two writers is told, and its text is nowhere."""
    files, here = small_files(spark), str(tmp_path / "_bookie")

    class Late(str):
        """A text that the other writer precedes."""

        __slots__ = ()

        def __format__(self, spec: str) -> str:
            files.write(here, "first", replaces=True)
            return str(self)

    if replaces:
        files.write(here, Late("second"), replaces=True)
        assert files.texts(here) == {"part-0.txt": "second\n"}
    else:
        with pytest.raises(FileExistsError):
            files.write(here, Late("second"))
        assert files.texts(here) == {"part-0.txt": "first\n"}
    assert [one.name for one in tmp_path.iterdir()] == ["_bookie"]
    assert {one.name for one in (tmp_path / "_bookie").iterdir()} <= {
        "part-0.txt",
        ".part-0.txt.crc",
    }


def test_a_mark_that_cannot_be_read(spark: SparkSession, tmp_path: Path) -> None:
    """Nobody may take it for none."""
    files = small_files(spark)
    assert read_mark(files, str(tmp_path)) is None
    files.write(f"{tmp_path}/_bookie", json.dumps({"job": "export", "id": "x"}))
    assert read_mark(files, str(tmp_path)) == JobMark("export", "x")
    files.write(f"{tmp_path}/_bookie", "no json", replaces=True)
    with pytest.raises(BadRequestError, match="does not say whose"):
        read_mark(files, str(tmp_path))
