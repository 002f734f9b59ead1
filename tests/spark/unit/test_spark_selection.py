"""Options that say what is read, and between which places."""

from __future__ import annotations

import json

import pytest

from bookie.errors import BadRequestError
from bookie.spark.options import SparkOptions
from bookie.spark.read_bounds import ReadPlace, take_end, take_start
from bookie.spark.selection import LedgerSelection, LogSelection, parse_ledgers, take_selection
from bookie.spark.stream_offsets import EARLIEST, LATEST, StreamOffset


def selected(**given: str) -> LogSelection | LedgerSelection:
    """The selection of options."""
    return take_selection(SparkOptions(given))


def test_kafkas_names_select_the_same() -> None:
    logs, pattern = ("orders", "returns"), "or.*"
    partitions = {"orders": (0, 2)}
    assert selected(logs="orders,returns,orders") == LogSelection(logs)
    assert selected(subscribe="orders, returns") == LogSelection(logs, is_kafkas=True)
    assert selected(logPattern=pattern) == LogSelection(pattern=pattern)
    assert selected(subscribePattern=pattern) == LogSelection(pattern=pattern, is_kafkas=True)
    text = '{"orders": [2, 0, 2]}'
    assert selected(partitions=text) == LogSelection(("orders",), partitions=partitions)
    assert selected(assign=text) == LogSelection(("orders",), partitions=partitions, is_kafkas=True)


def test_a_log_is_found_by_each_of_its_names() -> None:
    assert selected(log=" orders ") == selected(logs="default/orders") == LogSelection(("orders",))


def test_partitions_of_two_names_of_a_log_are_all_selected() -> None:
    found = selected(partitions='{"orders": [2], "default/orders": [0]}')
    assert found == LogSelection(("orders",), partitions={"orders": (0, 2)})


@pytest.mark.parametrize("log", ["orders", "default/orders"])
def test_places_are_found_by_each_name_of_a_log(log: str) -> None:
    text = json.dumps({log: {"0": 7}})
    offsets = StreamOffset({("orders", 0): 7})
    assert take_start(SparkOptions({"startingOffsets": text}), LATEST).offsets == offsets
    assert take_end(SparkOptions({"endingOffsets": text})).offsets == offsets
    for option in ("startingTimestamp", "startingOffsetsByTimestamp"):
        assert take_start(SparkOptions({option: text}), LATEST).times == {("orders", 0): 7}


@pytest.mark.parametrize("option", ["startingOffsets", "startingTimestamp"])
def test_two_names_of_a_log_give_one_place(option: str) -> None:
    """The same one twice is no contradiction."""

    def start(text: str) -> ReadPlace:
        return take_start(SparkOptions({option: text}), LATEST)

    once = start('{"orders": {"0": 3, "1": 4}}')
    assert start('{"orders": {"0": 3}, "default/orders": {"0": 3, "1": 4}}') == once
    twice = f"the option {option}: partition 0 of orders is given twice, as 3 and as 5"
    for text in (
        '{"orders": {"0": 3}, "default/orders": {"0": 5}}',
        '{"default/orders": {"0": 3}, "orders": {"0": 5}}',
        '{"orders": {"0": 3, "00": 5}}',
    ):
        with pytest.raises(BadRequestError, match=f"^{twice}$"):
            start(text)
    with pytest.raises(BadRequestError, match="'a b' is not the name of a log"):
        start('{"a b": {"0": 3}}')


def test_two_names_of_a_log_give_one_id() -> None:
    text = '{"orders": {"0": 3, "id": "x"}, "default/orders": {"1": 3, "id": "y"}}'
    with pytest.raises(BadRequestError, match="the id of orders is given twice, as x and as y"):
        take_start(SparkOptions({"startingOffsets": text}), LATEST)


def test_ledgers_are_ids_and_ranges() -> None:
    assert parse_ledgers("7, 1,10-20") == ((1, 1), (7, 7), (10, 20))
    found = selected(ledgers="1,10-20")
    assert isinstance(found, LedgerSelection)
    assert [n for n in range(30) if n in found] == [1, *range(10, 21)]


@pytest.mark.parametrize(
    "text", ["", ",", "1,,2", "1;2", "2-1", "-1", "1-", "x", "99999999999999999999"]
)
def test_what_are_no_ledgers(text: str) -> None:
    with pytest.raises(BadRequestError, match="ledger"):
        parse_ledgers(text)


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"a": []}', '{"a": [-1]}', '{"a": [true]}', '{"a": ["0"]}', "{"]
)
def test_what_are_no_partitions(text: str) -> None:
    with pytest.raises(BadRequestError, match="the option assign is JSON such as"):
        selected(assign=text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "say what to read"),
        ({"log": "a", "subscribe": "b"}, "either the option log or subscribe"),
        ({"logPattern": "("}, "logPattern is no regular expression"),
        ({"log": "a/b/c"}, "a/b/c"),
        ({"log": "a b"}, "a b"),
    ],
)
def test_what_selects_nothing(given: dict[str, str], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        selected(**given)


def test_places() -> None:
    def start(**given: str) -> object:
        return take_start(SparkOptions(given), LATEST)

    assert take_start(SparkOptions({}), EARLIEST).everywhere == EARLIEST
    assert take_start(SparkOptions({"startingoffsets": "Latest"}), EARLIEST).everywhere == LATEST
    place = take_start(SparkOptions({"startingOffsets": '{"a": {"0": 7, "1": -2}}'}), LATEST)
    assert place.offsets == StreamOffset({("a", 0): 7, ("a", 1): -2})
    assert take_start(SparkOptions({"startingTimestamp": "1700000000000"}), 0).time == 1700000000000
    for text in ("yesterday", "{", '{"a": 1}'):
        with pytest.raises(BadRequestError, match=r"startingOffsets|offsets are JSON"):
            start(startingOffsets=text)
    with pytest.raises(BadRequestError):
        start(startingTimestamp="yesterday")
    with pytest.raises(BadRequestError, match="the option startingTimestamp: 'soon' is no time"):
        start(startingTimestamp="soon")
    with pytest.raises(BadRequestError, match="cannot end at the earliest"):
        take_end(SparkOptions({"endingOffsets": '{"a": {"0": -2}}'}))


def test_times_by_partition() -> None:
    """In our option, and in those of Kafka's source."""
    text = '{"a": {"0": 1700000000000, "1": "2023-11-14T22:13:21Z"}}'
    times = {("a", 0): 1_700_000_000_000, ("a", 1): 1_700_000_001_000}
    for name in ("startingTimestamp", "startingOffsetsByTimestamp"):
        assert take_start(SparkOptions({name: text}), LATEST).times == times
    for name in ("endingTimestamp", "endingOffsetsByTimestamp"):
        assert take_end(SparkOptions({name: text})).times == times
    with pytest.raises(BadRequestError, match="either the option startingOffsets or startingOff"):
        take_start(
            SparkOptions({"startingOffsets": "latest", "startingOffsetsByTimestamp": text}), LATEST
        )


@pytest.mark.parametrize(
    "text", ["{", '{"a": 1}', '{"a": {"x": 1}}', '{"a": {"0": null}}', '{"a": {"0": true}}']
)
def test_what_are_no_times(text: str) -> None:
    with pytest.raises(
        BadRequestError, match="the option startingTimestamp is a time or JSON such"
    ):
        take_start(SparkOptions({"startingTimestamp": text}), LATEST)
