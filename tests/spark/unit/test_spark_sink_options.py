"""The options of a writing query, and the advice in their errors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie.errors import BadRequestError
from bookie.log.catalog.log_metadata import LogDefinition
from bookie.spark.options import SparkOptions
from bookie.spark.sink_options import COLUMN_TYPES, SinkColumns, SinkSettings, check_log, take_sink

URI = "local:///tmp/metadata"
VALUE = [("value", "string")]
ALL = [(name, kinds[0]) for name, kinds in COLUMN_TYPES.items()]


def taken(
    options: dict[str, str],
    columns: list[tuple[str, str]],
    *,
    overwrite: bool = False,
    is_stream: bool = False,
) -> SinkSettings:
    """The settings of a sink with these options."""
    given = SparkOptions({"metadata": URI, **options})
    return take_sink(given, columns, overwrite=overwrite, is_stream=is_stream)


def test_all_columns_are_found_where_they_stand() -> None:
    assert taken({}, ALL).columns == SinkColumns(0, 1, 2, 3, 4, 5)
    settings = taken({"log": "orders"}, [("KEY", "binary"), ("Value", "string")])
    assert settings.columns == SinkColumns(value=1, key=0)
    assert (settings.log, settings.creates_logs) == ("orders", False)


def test_kafkas_name_of_a_log() -> None:
    by_column = taken({}, [*VALUE, ("topic", "string")])
    assert (by_column.log, by_column.columns.log) == (None, 1)
    by_option = taken({"topic": "orders", "createlog": "true"}, VALUE)
    assert (by_option.log, by_option.creates_logs) == ("orders", True)


def test_a_log_that_is_made_may_have_partitions() -> None:
    settings = taken({"log": "a", "createLog": "true", "partitions": "98"}, VALUE)
    assert (settings.creates_logs, settings.partitions) == (True, 98)
    assert taken({"log": "a", "createLog": "true"}, VALUE).partitions is None


def test_a_write_that_happens_once() -> None:
    settings = taken({"log": "a", "txnappid": "job", "txnversion": "0"}, VALUE)
    assert (settings.application, settings.version) == ("job", 0)
    stream = taken({"log": "a", "txnAppId": "job"}, VALUE, is_stream=True)
    assert (stream.application, stream.version) == ("job", None)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ([("key", "binary")], "column value is missing; .*to_json"),
        ([("value", "int")], 'value has the type int.*col\\("value"\\).cast\\("string"\\)'),
        ([*VALUE, ("offset", "bigint")], "the sink has no column offset; .*Drop it"),
        ([*VALUE, ("VALUE", "string")], "column value is given twice"),
        ([*VALUE, ("log", "string"), ("topic", "string")], "column log is given twice"),
        ([*VALUE, ("partition", "bigint")], 'col\\("partition"\\).cast\\("int"\\)'),
        ([*VALUE, ("timestamp", "timestamp_ntz")], 'cast\\("timestamp"\\)'),
        ([*VALUE, ("headers", "map<string,binary>")], "array<struct<key:string,value:binary>>"),
        ([*VALUE, ("key", "bigint")], "binary or string"),
    ],
)
def test_a_frame_that_does_not_fit(columns: list[tuple[str, str]], says: str) -> None:
    with pytest.raises(BadRequestError, match=says):
        taken({"log": "a"}, columns)


@pytest.mark.parametrize(
    ("options", "is_stream", "says"),
    [
        ({}, False, 'no log to go to: set .option\\("log", NAME\\)'),
        ({"log": ""}, False, "option log is empty"),
        ({"log": "a", "topic": "b"}, False, "log and topic mean the same"),
        ({"log": "a", "txnAppId": "x"}, False, "txnAppId needs txnVersion"),
        ({"log": "a", "txnVersion": "1"}, False, "txnVersion needs txnAppId"),
        ({"log": "a", "txnAppId": "", "txnVersion": "1"}, False, "txnAppId is empty"),
        ({"log": "a", "txnAppId": "x", "txnVersion": "-1"}, False, "number from 0 on"),
        ({"log": "a", "txnAppId": "x", "txnVersion": "1"}, True, "leave the option txnVersion out"),
        ({"log": "a", "startingOffsets": "earliest"}, False, "no option startingoffsets"),
        ({"log": "a", "partitions": "4"}, False, 'add .option\\("createLog", "true"\\)'),
        ({"log": "a", "createLog": "true", "partitions": "99"}, False, "is 99, .* 98 at most"),
        ({"log": "a", "createLog": "true", "partitions": "0"}, False, "number from 1 on"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, str], is_stream: bool, says: str) -> None:
    with pytest.raises(BadRequestError, match=says):
        taken(options, VALUE, is_stream=is_stream)


@pytest.mark.parametrize(
    ("is_stream", "says"),
    [(False, 'mode\\("append"\\) .*truncate'), (True, 'outputMode\\("append"\\) .*foreachBatch')],
)
def test_a_log_only_grows(is_stream: bool, says: str) -> None:
    with pytest.raises(BadRequestError, match=says):
        taken({"log": "a"}, VALUE, overwrite=True, is_stream=is_stream)


def test_a_log_with_more_partitions_than_a_batch() -> None:
    fitting = LogDefinition("id", partitions=98)
    check_log("a", fitting)
    with pytest.raises(BadRequestError, match=r"a has 99 partitions, .* 98 at most"):
        check_log("a", replace(fitting, partitions=99))
