"""Pages of reports, damage from verdicts, and the zip: without Spark's JVM."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
import zipfile
from pathlib import Path

from pyspark.errors import AnalysisException

from bookie.ledger.copies.replica_repair import CopyDamage
from bookie.spark.jobs import pictures
from bookie.spark.jobs.audit import AuditSummary, DamagedCopy, VerdictCount, audit_page, write_page
from bookie.spark.jobs.repair import RepairSummary, damages_of
from bookie.spark.jobs.stats import BookieShare, ClusterStats, LogShare, skew_of, stats_page
from bookie.spark.package import requirements, write_package
from bookie.spark.session import plain_error

CLEAN = VerdictCount("b1", "ok", 10, 100, 5000)
LOST = VerdictCount("b<2>", "missing", 1, 3, 0)
SILENT = VerdictCount("b3", "unreachable", 2, 9, 0)


def _summary(*counts: VerdictCount, examples: tuple[DamagedCopy, ...] = ()) -> AuditSummary:
    return AuditSummary("/report", 10, 1, counts, examples)


def test_only_damage_is_damage() -> None:
    assert not _summary(CLEAN).has_damage
    assert _summary(CLEAN).is_complete
    assert _summary(CLEAN, LOST).has_damage
    assert not _summary(CLEAN, SILENT).has_damage
    assert not _summary(CLEAN, SILENT).is_complete
    assert "bookies did not answer" in _summary(CLEAN, SILENT).sentence
    both = _summary(CLEAN, LOST, SILENT).sentence
    assert "1 ledgers are damaged, and bookies did not answer" in both
    wholes = [_summary(CLEAN, *more).is_whole for more in ((), (LOST,), (SILENT,))]
    assert wholes == [True, False, False]


def test_the_page_is_well_formed_and_hides_nothing() -> None:
    example = DamagedCopy(4, "b<2>", "missing", 3, "1-3", "<why>")
    page = audit_page(_summary(CLEAN, LOST, SILENT, examples=(example,)))
    root = ET.fromstring(page.removeprefix("<!DOCTYPE html>").replace("<meta charset='utf-8'>", ""))
    colours = {one.get("fill") for one in root.iter("{http://www.w3.org/2000/svg}rect")}
    assert colours == {pictures.OK, pictures.BAD, pictures.OPEN}
    assert "<why>" in "".join(root.itertext())
    assert "b<2>" in "".join(root.itertext())


def test_one_wrong_entry_of_a_billion_is_visible() -> None:
    drawn = ET.fromstring(pictures.bars([("b", [(10**9, pictures.OK), (1, pictures.BAD)], "")]))
    widths = [float(one.get("width", "0")) for one in drawn if one.tag.endswith("rect")]
    assert min(widths) >= 2


def test_pages_stand_beside_local_reports_only(tmp_path: Path) -> None:
    for elsewhere in ("hdfs://nowhere/report", "hdfs:/report", "s3a://bucket/report"):
        assert write_page("x", elsewhere, "audit.html", None) is None
    here = str(tmp_path / "uri" / "audit.html")
    for written in (f"file:{tmp_path}/uri", f"file://{tmp_path}/uri"):
        assert write_page("x", written, "audit.html", None) == here
    assert write_page("x", str(tmp_path / "new"), "audit.html", None) == str(
        tmp_path / "new" / "audit.html"
    )
    assert write_page("x", "hdfs://nowhere", "audit.html", str(tmp_path / "p.html")) is not None
    assert (tmp_path / "p.html").read_text() == "x"


def test_skew_is_one_when_even() -> None:
    assert skew_of([]) == skew_of([0, 0]) == skew_of([5, 5]) == 1
    assert skew_of([10, 0]) == 2


def test_statistics_name_what_is_lost() -> None:
    bookies = (
        BookieShare("b1", "writable", "r1", 4, 1000, 50),
        BookieShare("b2", "lost", "", 4, 3000, 0),
    )
    found = ClusterStats(2, 1, 9, 10, 1, 2, 3, bookies, (LogShare("", 1, 9, 10),), ())
    assert found.racks == {"": 3000, "r1": 1000}
    page = stats_page(found)
    assert pictures.BAD in page
    assert "no rack" in page
    assert "1.50 times the mean" in page


def test_damage_of_a_bookie_is_joined() -> None:
    rows = [
        {"bookie": "b2", "ranges": [{"first": 4, "last": 9}], "foundOn": ["b9"]},
        {"bookie": "b1", "ranges": [{"first": 0, "last": 0}], "foundOn": []},
        {"bookie": "b2", "ranges": [{"first": 1, "last": 3}], "foundOn": ["b8"]},
    ]
    assert damages_of(rows) == [
        CopyDamage("b1", ((0, 0),)),
        CopyDamage("b2", ((1, 9),), ("b8", "b9")),
    ]


def test_a_repair_is_whole_when_nothing_is_left() -> None:
    assert RepairSummary({"repaired": 2, "was-fine": 1, "deleted": 1}, 5, 5).is_whole
    assert RepairSummary({}, 0, 0).is_whole
    for left in ("refused", "no-good-copy", "locked"):
        assert not RepairSummary({"repaired": 2, left: 1}, 5, 5).is_whole


def test_a_repair_of_an_audit_that_is_incomplete_is_not_whole() -> None:
    """Nobody knows what the silent bookie has. So nothing to do is not the same as done."""
    for left in ("unreachable", "wrong-length", "unreadable"):
        summary = RepairSummary({"repaired": 2, "refused": 1}, 5, 5, {left: 3})
        assert not RepairSummary({"repaired": 2}, 5, 5, {left: 3}).is_whole
        assert f"(1 refused, 3 {left})" in summary.sentence
    assert RepairSummary({"repaired": 2}, 5, 5).sentence == ""


def test_errors_of_spark_are_told_in_one_sentence() -> None:
    text = "Failed to plan: Traceback:\n  File x\nbookie.errors.BadRequestError: give a log\n\nJVM"
    assert str(plain_error(AnalysisException(text))) == "give a log"
    assert str(plain_error(AnalysisException("no such path\nJVM"))) == "Spark failed: no such path"
    assert plain_error(ValueError("ours")) is None


def test_the_zip_is_importable_and_the_same_each_time(tmp_path: Path) -> None:
    target = write_package(tmp_path / "one")
    assert target.read_bytes() == write_package(tmp_path / "two").read_bytes()
    assert "bookie/spark/source.py" in zipfile.ZipFile(target).namelist()
    code = "import pyspark_bookkeeper, bookie; print(bookie.__file__)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(target)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.startswith(str(target))
    assert any(one.startswith("grpcio") for one in requirements())
