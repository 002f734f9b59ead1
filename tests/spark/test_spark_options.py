"""Options as Spark gives them."""

from __future__ import annotations

import pytest

from bookie.errors import BadRequestError, ConfigurationError
from bookie.spark.connecting import take_connection
from bookie.spark.options import SparkOptions

URI = "local:///tmp/metadata"


def test_names_are_found_in_any_case_and_by_their_aliases() -> None:
    options = SparkOptions({"MAXBYTES": "64m", "subscribe": "a, b,", "flag": "TRUE", "n": "7"})
    assert options.take_bytes("maxBytes") == 64 << 20
    assert options.take_names("logs", "subscribe") == ["a", "b"]
    assert options.take_flag("flag", False)
    assert options.take_count("n") == 7
    assert options.take_count("other") is None
    options.refuse_others()


@pytest.mark.parametrize("text", ["", "m", "-1", "1.5g", "64x", "0"])
def test_a_size_that_is_none(text: str) -> None:
    with pytest.raises(BadRequestError, match="maxBytes is a size such as 64m"):
        SparkOptions({"maxbytes": text}).take_bytes("maxBytes")


def test_what_is_wrong_is_named_as_documented() -> None:
    with pytest.raises(BadRequestError, match="mode is one of a, b, not 'c'"):
        SparkOptions({"mode": "c"}).take_choice("mode", ("a", "b"), "a")
    with pytest.raises(BadRequestError, match="minPartitions is a number from 1 on"):
        SparkOptions({"minpartitions": "none"}).take_count("minPartitions")
    with pytest.raises(BadRequestError, match="logs and subscribe mean the same"):
        SparkOptions({"logs": "a", "subscribe": "a"}).take("logs", "subscribe")
    with pytest.raises(BadRequestError, match="either the option log or ledgers, not both"):
        SparkOptions({"log": "a", "ledgers": "1"}).take_one(["log", "ledgers"])


def test_an_unknown_option_is_refused_with_a_hint() -> None:
    options = SparkOptions({"metadata": URI, "metdata": "x", "checkpointLocation": "/tmp"})
    take_connection(options)
    with pytest.raises(BadRequestError, match="no option metdata; do you mean metadata\\?"):
        options.refuse_others()


def test_files_of_a_connection_are_paths() -> None:
    """Each machine reads its own files."""
    given = {"metadata": URI, "tokenFile": "/t", "caFile": "/c", "keyFile": ""}
    found = take_connection(SparkOptions(given)).security
    assert found == (("ca_file", "/c"), ("token_file", "/t"))


def test_a_connection_needs_its_metadata() -> None:
    with pytest.raises(BadRequestError, match="the option metadata is missing"):
        take_connection(SparkOptions({}))
    with pytest.raises(ConfigurationError, match="must begin with local:///"):
        take_connection(SparkOptions({"metadata": "nonsense"}))
