"""Options of the source: defaults, columns, and what a stream cannot do."""

from __future__ import annotations

import pytest

from bookie.errors import BadRequestError
from bookie.spark.options import SparkOptions
from bookie.spark.source_options import BatchLimits, LedgerSource, LogSource, take_source
from bookie.spark.stream_offsets import EARLIEST, LATEST

URI = "local:///metadata"


def test_defaults_of_a_batch_and_of_a_stream() -> None:
    options = {"metadata": URI, "log": "orders"}
    batch = take_source(SparkOptions(options), is_stream=False)
    stream = take_source(SparkOptions(options), is_stream=True)
    assert isinstance(batch, LogSource)
    assert isinstance(stream, LogSource)
    assert (batch.start.everywhere, stream.start.everywhere) == (EARLIEST, LATEST)
    assert batch.end is not None
    assert stream.end is None
    assert batch.fail_on_data_loss
    assert stream.batch_limits == BatchLimits(None, None, None, 900)


def test_limits_of_batches_by_both_of_their_names() -> None:
    def limits(**given: str) -> BatchLimits:
        options = SparkOptions({"metadata": URI, "log": "orders", **given})
        found = take_source(options, is_stream=True)
        assert isinstance(found, LogSource)
        return found.batch_limits

    both = limits(maxOffsetsPerTrigger="7", maxBytesPerTrigger="1m")
    assert both == BatchLimits(7, 1 << 20, None, 900)
    assert limits(minOffsetsPerTrigger="7") == limits(minEntriesPerTrigger="7")
    for text, seconds in {"500ms": 0.5, "30s": 30, "5 min": 300, "15m": 900, "1D": 86400}.items():
        found = limits(minEntriesPerTrigger="7", maxTriggerDelay=text)
        assert (found.rows_min, found.delay_seconds) == (7, seconds)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ledgers": "1"}, "a stream reads logs"),
        ({"log": "a", "endingOffsets": "latest"}, "a stream has no end"),
        ({"log": "a", "endingOffsetsByTimestamp": "{}"}, "a stream has no end"),
        ({"log": "a", "maxEntriesPerTrigger": "0"}, "a number from 1 on"),
        ({"log": "a", "minEntriesPerTrigger": "0"}, "a number from 1 on"),
        ({"log": "a", "minEntriesPerTrigger": "3", "maxOffsetsPerTrigger": "2"}, "smaller minimum"),
        ({"log": "a", "maxTriggerDelay": "1m"}, "give both"),
        ({"log": "a", "minEntriesPerTrigger": "3", "maxTriggerDelay": "60"}, "such as 30s or 15m"),
        ({"log": "a", "minEntriesPerTrigger": "3", "maxTriggerDelay": "0s"}, "such as 30s or 15m"),
    ],
)
def test_what_a_stream_cannot_do(options: dict[str, str], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        take_source(SparkOptions({"metadata": URI, **options}), is_stream=True)


def test_columns_are_chosen_in_their_order() -> None:
    def names(**options: str) -> list[str]:
        found = take_source(SparkOptions({"metadata": URI, **options}), is_stream=False)
        assert isinstance(found, LogSource | LedgerSource)
        return found.columns.schema().names

    assert names(log="a", columns="offset, KEY") == ["offset", "key"]
    assert names(subscribe="a", columns="topic,value") == ["topic", "value"]
    assert "value" not in names(log="a", includeValue="false")
    assert names(ledgers="1") == ["ledgerId", "entryId", "value", "length"]
    assert names(log="a", includeHeaders="true")[-1] == "headers"
    with pytest.raises(BadRequestError, match="the option columns has headers"):
        names(log="a", columns="headers")
