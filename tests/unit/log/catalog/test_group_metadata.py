"""Members and assignments of groups: what is refused."""

from __future__ import annotations

import json

import pytest

from bookie.errors import FormatError, NewerFormatError
from bookie.log.catalog.group_metadata import (
    GroupAssignment,
    MemberProfile,
    decode_group_assignment,
    decode_member_profile,
    encode_group_assignment,
    encode_member_profile,
)

ASSIGNMENT = GroupAssignment(3, "a", 1_700_000_000_000, {"a": ("orders#0", "orders#1"), "b": ()})
PROFILE = MemberProfile("host-1:42", ("orders",), "sales/*")


def assignment(**fields: object) -> bytes:
    """An assignment's bytes with some fields replaced."""
    return json.dumps({**json.loads(encode_group_assignment(ASSIGNMENT)), **fields}).encode()


def profile(**fields: object) -> bytes:
    """A profile's bytes with some fields replaced."""
    return json.dumps({**json.loads(encode_member_profile(PROFILE)), **fields}).encode()


def test_fields_of_later_versions_may_be_ignored() -> None:
    """Equal values have equal bytes, and unknown keys are skipped."""
    assert decode_group_assignment(assignment(colour="red")) == ASSIGNMENT
    assert decode_member_profile(profile(colour="red")) == PROFILE


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"77", "another name"),
        (profile(), "another name"),
        (assignment(generation=-1), "generation is -1"),
        (assignment(leader=7), "leader is not text"),
        (assignment(changed_ms=None), "changed_ms is not a whole number"),
        (assignment(shares={}), "shares is not a list"),
        (assignment(shares=[7]), "shares is not a list of objects"),
        (assignment(shares=[{"member": "a"}]), "partitions is missing"),
        (assignment(shares=[{"member": "a", "partitions": [7]}]), "partitions is not a list"),
    ],
)
def test_bad_assignments_are_refused(data: bytes, message: str) -> None:
    """Damaged assignments are format errors, which name the format."""
    with pytest.raises(FormatError, match=message) as caught:
        decode_group_assignment(data)
    assert "bookie-group-assignment" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (assignment(), "another name"),
        (profile(owner=None), "owner is not text"),
        (profile(logs="orders"), "logs is not a list"),
        (profile(pattern=7), "pattern is not text"),
    ],
)
def test_bad_profiles_are_refused(data: bytes, message: str) -> None:
    """Damaged profiles are format errors, which name the format."""
    with pytest.raises(FormatError, match=message) as caught:
        decode_member_profile(data)
    assert "bookie-group-member" in str(caught.value)


def test_newer_records_are_refused_as_newer() -> None:
    """A program that is too old tells it."""
    with pytest.raises(NewerFormatError):
        decode_group_assignment(assignment(version=2))
    with pytest.raises(NewerFormatError):
        decode_member_profile(profile(version=2))
