"""Registrations, and the JSON frame that small records share."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from bookie.cluster.registration_record import (
    Endpoint,
    Registration,
    decode_registration,
    encode_registration,
)
from bookie.errors import BadRequestError, FormatError
from bookie.metadata import json_record

REGISTRATION = Registration(
    bookie_id="bookie-1",
    endpoints=(
        Endpoint("bookie", "10.0.0.1", 3181, "grpc"),
        Endpoint("http", "10.0.0.1", 8080, "http"),
    ),
    labels={"zone": "b", "rack": "r1"},
    total_bytes=1000,
    free_bytes=500,
    load=0.25,
    read_only=True,
    version="0.1.0",
)


def changed(**fields: object) -> bytes:
    """The registration's bytes with some fields replaced."""
    return json.dumps({**json.loads(encode_registration(REGISTRATION)), **fields}).encode()


def test_registration_round_trip() -> None:
    """Every field survives, and the order of labels does not matter."""
    data = encode_registration(REGISTRATION)
    assert decode_registration(data) == REGISTRATION
    labels = dict(reversed(list(REGISTRATION.labels.items())))
    assert encode_registration(replace(REGISTRATION, labels=labels)) == data
    assert data.startswith(b'{"bookie_id":"bookie-1","endpoints":[{"host":')


def test_unknown_fields_are_overlooked() -> None:
    """A field that a later release adds does not disturb."""
    assert decode_registration(changed(something_new=5)) == REGISTRATION


def test_endpoints_are_found_by_name() -> None:
    """An endpoint is looked up by what it serves."""
    assert REGISTRATION.endpoint("http") == Endpoint("http", "10.0.0.1", 8080, "http")
    assert REGISTRATION.endpoint("gopher") is None


def test_the_address_of_an_endpoint_is_text() -> None:
    assert Endpoint("http", "10.0.0.1", 8080, "http").address == "10.0.0.1:8080"
    assert Endpoint("http", "::1", 8080, "http").address == "[::1]:8080"


def test_load_must_be_a_number() -> None:
    """NaN has no place in JSON."""
    with pytest.raises(BadRequestError, match="bookie-1"):
        encode_registration(replace(REGISTRATION, load=math.nan))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a bookie-registration record"),
        (b"\xff", "not a bookie-registration record"),
        (b"[" * 100_000, "not a bookie-registration record"),
        (b"[]", "another name"),
        (changed(format="cookie"), "another name"),
        (changed(version=2), "newer version: format 2"),
        (changed(version=0), "version is 0"),
        (changed(version="1"), "version is not a whole number"),
        (changed(bookie_id="a/b"), "cannot be a bookie's id"),
        (changed(endpoints=None), "endpoints is not a list"),
        (changed(endpoints=[1]), "not a list of objects"),
        (changed(endpoints=[{"name": "x", "host": "y"}]), r"endpoints\[0\]: port is missing"),
        (
            changed(endpoints=[{"name": "x", "host": "y", "port": 65536, "protocol": "z"}]),
            "port is 65536",
        ),
        (changed(labels=[]), "labels is not an object"),
        (changed(labels={"rack": 1}), "labels: rack is not text"),
        (changed(total_bytes=-1), "total_bytes is -1"),
        (changed(free_bytes=True), "free_bytes is not a whole number"),
        (changed(load="high"), "load is not a number"),
        (changed(load=True), "load is not a number"),
        (changed(load=10**400), "sensible size"),
        (changed().replace(b"0.25", b"NaN"), "NaN"),
        (changed(read_only=1), "read_only is not true or false"),
        (changed(program_version=None), "program_version is not text"),
    ],
)
def test_bad_registrations_are_refused(data: bytes, message: str) -> None:
    """Foreign, damaged and newer records are told apart, and the field is named."""
    with pytest.raises(FormatError, match=message):
        decode_registration(data)


def test_optional_numbers() -> None:
    """A missing or null number is None; anything else must be a number in range."""
    fields = json_record.decode("f", 1, json_record.encode("f", 1, {"a": 5, "b": None, "c": "x"}))
    assert fields.optional_integer("a") == 5
    assert fields.optional_integer("b") is None
    assert fields.optional_integer("missing") is None
    with pytest.raises(FormatError, match="c is not a whole number"):
        fields.optional_integer("c")
    with pytest.raises(FormatError, match="a is 5, which is not in 0 … 4"):
        fields.optional_integer("a", minimum=0, maximum=4)
