"""Files become records: each by its own columns, nothing changed, nothing dropped silently."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the usual name)

from bookie.errors import BadRequestError
from bookie.spark.jobs.export import parse_schema
from bookie.spark.jobs.ingest import ingest_files
from bookie.spark.jobs.ingest_plan import IngestPlan
from bookie.spark.jobs.moving import Moved, MoveTarget
from bookie.sync import SyncBookKeeper


class Landing:
    """A directory of files, and the job that takes them."""

    def __init__(self, spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, home: Path):
        self._spark, self._uri, self._bk, self._log = spark, uri, bk, log
        self._home = home
        self.files = home / "landing"
        self.files.mkdir()
        bk.create_log(log, transactional=True)

    def put(self, name: str, *lines: str, text: str | None = None) -> None:
        """A file of these lines."""
        path = self.files / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("".join(f"{one}\n" for one in lines) if text is None else text)

    def ingest(self, file_format: str, too_large: str = "fail", **plan: Any) -> Moved:
        """Ingest the new files."""
        home = str(self._home / "checkpoint")
        target = MoveTarget(self._uri, self._log, home, too_large=too_large)
        return ingest_files(self._spark, IngestPlan(str(self.files), file_format, **plan), target)

    def values(self) -> list[str]:
        """All that readers see, sorted."""
        return sorted(record.value.decode() for record in self._bk.read_log(self._log))

    def keys(self) -> dict[str, str | None]:
        """Keys by value."""
        found = self._bk.read_log(self._log)
        return {one.value.decode(): None if one.key is None else one.key.decode() for one in found}

    def aside(self) -> list[tuple[str, str, str]]:
        """Name of the file, value and reason of what was set aside."""
        rows = self._spark.read.parquet(str(self._home / "checkpoint" / "quarantine")).collect()
        return sorted(
            (row["file"].rpartition("/")[2], bytes(row["value"]).decode(), row["reason"])
            for row in rows
        )


@pytest.fixture
def landing(spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path) -> Landing:
    """An empty one."""
    return Landing(spark, uri, bk, log, tmp_path)


def test_columns_of_csv_are_matched_by_name(landing: Landing) -> None:
    """Another order, a further column, a name that is a pattern, and a decimal of 40 digits."""
    long = "1234567890123456789012345678901234567890.10"
    landing.put("day=07/a[1]{x}.csv", "id;name", "1;ä", f"{long};'q;r'")
    landing.put("day=x/b c%20.csv", "", "# none", "name;id", "b;2", "", ";3")
    landing.put("day=07/c.csv", "id;more;name", "4;m;d")
    landing.put("day=x/empty.csv")
    options = {"sep": ";", "QUOTE": "'", "comment": "#"}
    found = landing.ingest("csv", options=options, key="id", max_bytes=20)
    assert (found.rows, found.quarantined) == (5, 0)
    assert landing.keys() == {
        '{"id":"1","name":"ä","day":"07"}': "1",
        f'{{"id":"{long}","name":"q;r","day":"07"}}': long,
        '{"name":"b","id":"2","day":"x"}': "2",
        '{"name":null,"id":"3","day":"x"}': "3",
        '{"id":"4","more":"m","name":"d","day":"07"}': "4",
    }
    assert landing.ingest("csv", options=options, key="id").rows == 0
    landing.put("day=x/later.csv", " ", "_reason;id", "y;5")
    landing.put("day=x/other.csv", " ", "id;_kind", "6;z")
    assert landing.ingest("csv", options=options, key="id").rows == 2
    assert {
        '{"_reason":"y","id":"5","day":"x"}',
        '{"id":"6","_kind":"z","day":"x"}',
    } < set(landing.values())


def test_rows_that_do_not_fit_are_set_aside_with_their_reason(landing: Landing) -> None:
    schema = parse_schema("id INT, price DECIMAL(10,2), at TIMESTAMP")
    landing.put(
        "a.csv", "price,id,at", "1.50,1,2026-01-02 03:04:05.123456", "1.505,2,", "x,3,", "7"
    )
    landing.put("b.csv", "id,price,at", "4,12345678.90,", "5.5,1,", "6,1,2,3", "9999999999,1,")
    landing.put("c.csv", "id,price,at", "8,1e1,", "9,123456789.00,", ",,")
    found = landing.ingest("csv", schema=schema)
    assert (found.rows, found.quarantined) == (3, 8)
    assert landing.values() == [
        '{"id":4,"price":12345678.90,"at":null}',
        '{"id":null,"price":null,"at":null}',
        '{"price":1.50,"id":1,"at":"2026-01-02T03:04:05.123456Z"}',
    ]
    many = "price has more digits than decimal(10,2): 1.505"
    assert landing.aside() == [
        ("a.csv", "7", "the row does not have 3 columns"),
        ("a.csv", '{"price":"1.505","id":2,"at":null}', many),
        ("a.csv", '{"price":"x","id":3,"at":null}', "price is no decimal(10,2): x"),
        ("b.csv", "5.5,1,", "id is no int: 5.5"),
        ("b.csv", "6,1,2,3", "the row does not have 3 columns"),
        ("b.csv", "9999999999,1,", "id is no int: 9999999999"),
        ("c.csv", '{"id":8,"price":"1e1","at":null}', "price is written with an exponent"),
        (
            "c.csv",
            '{"id":9,"price":"123456789.00","at":null}',
            "price is no decimal(10,2): 123456789.00",
        ),
    ]


def test_files_with_other_columns(landing: Landing) -> None:
    schema = parse_schema("id INT, name STRING")
    landing.put("a.csv", "id,nam", "1,a", "2,b")
    landing.put("b.csv", "name,id", "c,3")
    says = "a.csv: the schema has no column nam and the file has no column name; --header-check"
    with pytest.raises(PySparkException, match=says):
        landing.ingest("csv", schema=schema)
    assert landing.values() == []
    landing.put("c.csv", "id,id", "4,5")
    landing.put("e.csv", "_corrupt_record", "6")
    found = landing.ingest("csv", schema=schema, header_check="quarantine")
    assert (found.rows, found.quarantined) == (1, 4)
    assert landing.values() == ['{"name":"c","id":3}']
    why = "the schema has no column nam and the file has no column name"
    assert landing.aside() == [
        ("a.csv", "1,a", why),
        ("a.csv", "2,b", why),
        ("c.csv", "4,5", "the column id is there twice"),
        ("e.csv", "6", "a column cannot be called _corrupt_record; rename it"),
    ]
    landing.put("d.csv", "nam,id", "x,6")
    assert landing.ingest("csv", schema=schema, header_check="any").rows == 1
    assert '{"nam":"x","id":6,"name":null}' in landing.values()


def test_lines_of_json_stay_as_they_are(landing: Landing) -> None:
    exact = '{"id": 12345678901234567890.12345678901234567890, "k": 1.10}'
    landing.put("a.json", exact, "broken{", "", '{"k": "x"} y', "[1]", '{"k":1}{"k":2}')
    landing.put("b.json", '{"id": "text", "k": null}', '{"k":1, "k":2}', '{"k": 1e400}')
    found = landing.ingest("json", key="k")
    assert (found.rows, found.quarantined) == (2, 6)
    assert landing.keys() == {exact: "1.1", '{"id": "text", "k": null}': None}
    assert {value: reason for _, value, reason in landing.aside()} == {
        **dict.fromkeys(
            ["broken{", '{"k": "x"} y', "[1]", '{"k":1}{"k":2}', '{"k":1, "k":2}'],
            "it is no JSON object",
        ),
        '{"k": 1e400}': "k, which is to be the key, is a number that loses digits as text",
    }


def test_a_schema_checks_json_and_paths_are_columns(landing: Landing) -> None:
    schema = parse_schema("id INT, price DECIMAL(10,1), day STRING")
    landing.put("day=7/a.json", '{"id": 1, "price": 1.26}', '{"id": "x"}', "{}")
    landing.put("day=7/b.json", '{"id": 2, "day": 8}', '{"id": 3, "more": 1}')
    with pytest.raises(PySparkException, match=r"b.json: the schema has no column more; --header"):
        landing.ingest("json", schema=schema)
    found = landing.ingest("json", schema=schema, header_check="quarantine")
    assert (found.rows, found.quarantined) == (2, 3)
    assert landing.values() == ['{"day":"7","id": 1, "price": 1.26}', '{"day":"7"}']
    assert [(value, reason) for _, value, reason in landing.aside()] == [
        ('{"id": "x"}', "id is no int: x"),
        ('{"id": 2, "day": 8}', "day is in the object and in the path"),
        ('{"id": 3, "more": 1}', "the schema has no column more"),
    ]


def test_json_documents_of_several_lines(landing: Landing) -> None:
    landing.put("a.json", "[", '{"id": 1.10},', "", '{"id": 2}, 3', "]")
    landing.put("b.json", "{", '"id": 3', "}")
    landing.put("c.json", "[", '{"id":')
    landing.put("d.json", f'[{{"id": 1.{"1" * 40}}}]')
    landing.put("e.json", "[]")
    found = landing.ingest("json", options={"multiline": "true"})
    assert (found.rows, found.quarantined) == (3, 3)
    assert landing.values() == ['{"id":1.1}', '{"id":2}', '{"id":3}']
    assert [(file, reason) for file, _, reason in landing.aside()] == [
        ("a.json", "it is no JSON object"),
        ("c.json", "it is no JSON object"),
        ("d.json", "the file may have a number that loses digits"),
    ]


def test_parquet_by_the_columns_of_each_file(landing: Landing, spark: SparkSession) -> None:
    one = spark.sql("SELECT 1 AS id, cast('12345678901234567890.123456789' AS DECIMAL(38,9)) AS p")
    other = spark.sql("SELECT timestamp'2026-01-02 03:04:05.123456' AS at, 'x' AS id, 2 AS more")
    for name, frame in (("one", one), ("other", other)):
        frame.coalesce(1).write.parquet(str(landing.files / name))
    options = {"recursiveFileLookup": "true", "pathGlobFilter": "*.parquet"}
    assert landing.ingest("parquet", options=options, key="id").rows == 2
    assert landing.keys() == {
        '{"id":1,"p":12345678901234567890.123456789}': "1",
        '{"at":"2026-01-02T03:04:05.123456Z","id":"x","more":2}': "x",
    }
    schema = parse_schema("id INT, p DECIMAL(38,9)")
    one.select(F.col("p"), F.col("id").cast("bigint").alias("id")).coalesce(1).write.parquet(
        str(landing.files / "third")
    )
    with pytest.raises(PySparkException, match="the column id is bigint, and the schema says int"):
        landing.ingest("parquet", options=options, schema=schema)


def test_rows_that_no_record_holds(landing: Landing, bk: SyncBookKeeper, log: str) -> None:
    most = bk.publisher(log).bounds().size_bytes_max - 16
    landing.put("a.txt", "x" * most, "y" * (most + 1), "")
    says = f"a.txt: the record has {most + 17} bytes with key and headers, .*--too-large quarantine"
    with pytest.raises(PySparkException, match=says):
        landing.ingest("text")
    found = landing.ingest("text", too_large="quarantine")
    assert (found.rows, found.quarantined) == (2, 1)
    assert [len(one) for one in landing.values()] == [0, most]
    assert [len(value) for _, value, _ in landing.aside()] == [most + 1]


def test_an_empty_folder_is_no_failure(landing: Landing) -> None:
    for file_format in ("text", "json", "csv", "parquet", "binaryFile"):
        assert landing.ingest(file_format).rows == 0
    landing.put("empty.csv")
    assert landing.ingest("csv").rows == 0
    landing.put("old.bin", text="bytes")
    assert landing.ingest("binaryFile").rows == 1
    assert landing.values() == ["bytes"]


def test_batches_are_bounded_and_older_files_are_taken(landing: Landing, tmp_path: Path) -> None:
    for number in range(3):
        landing.put(f"{number}.txt", f"{number}" * 10)
    assert landing.ingest("text", max_bytes=12).rows == 3
    commits = [one for one in (tmp_path / "checkpoint" / "commits").iterdir() if one.name.isdigit()]
    assert len(commits) == 3
    landing.put("long-ago.txt", "old")
    os.utime(landing.files / "long-ago.txt", (1_000_000, 1_000_000))
    assert landing.ingest("text").rows == 1


def test_a_checkpoint_of_the_direct_stream_goes_on(
    landing: Landing, spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    """As versions before 0.2 wrote it: a stream of the files' rows into the sink."""
    landing.put("1.txt", "a", "b")
    rows = spark.readStream.format("text").schema("value STRING").load(str(landing.files))
    query = (
        rows.select(F.col("value").cast("binary"))
        .writeStream.format("bookkeeper")
        .options(metadata=uri, log=log, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert landing.values() == ["a", "b"]
    landing.put("2.txt", "c")
    assert landing.ingest("text").rows == 1
    assert landing.values() == ["a", "b", "c"]
    assert bk.publisher(log).last_batch(query.id) == 1


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({"file_format": "orc"}, "files are text, json, csv, parquet, binaryFile, not orc"),
        ({"file_format": "csv", "header_check": "no"}, "--header-check is one of fail, quarantine"),
        ({"file_format": "csv", "options": {"seb": ";"}}, "option seb for csv; do you mean sep"),
        ({"file_format": "csv", "options": {"mode": "DROPMALFORMED"}}, "not take the option mode"),
        ({"file_format": "json", "options": {"allowComments": "true"}}, "option allowComments"),
        ({"file_format": "csv", "options": {"header": "false"}}, "without a header need --schema"),
        ({"file_format": "text", "key": "id"}, "a file of text has no columns; omit --key"),
        (
            {"file_format": "csv", "max_bytes": 1000, "options": {"maxFilesPerTrigger": "1"}},
            "either --max-bytes-per-trigger or the option maxFilesPerTrigger",
        ),
    ],
)
def test_plans_that_are_wrong(plan: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequestError, match=says):
        IngestPlan("/landing", **plan).validate()
