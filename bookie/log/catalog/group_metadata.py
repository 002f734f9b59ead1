"""The records of a group of consumers in the metadata store: its members and its assignment.

Each record is canonical JSON (:mod:`bookie.metadata.json_record`), version 1. The formats are
``bookie-group-member`` and ``bookie-group-assignment``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from bookie.ids import MAX_ID
from bookie.metadata import json_record

_MEMBER_FORMAT = "bookie-group-member"
_ASSIGNMENT_FORMAT = "bookie-group-assignment"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class MemberProfile:
    """One member of a group, and the logs that it wants to consume."""

    owner: str = ""
    """Host and process of the member, as information for people."""
    logs: tuple[str, ...] = ()
    """The names of the logs that the member wants the group to consume."""
    pattern: str = ""
    """A pattern for the names of further logs in one namespace, such as ``orders-*``, or empty."""


@dataclass(frozen=True, slots=True)
class GroupAssignment:
    """One assignment of a group: the partitions of each member."""

    generation: int = 0
    """The number of the assignment, which rises by one with each change."""
    leader: str = ""
    """The member that wrote the assignment, as information for people."""
    changed_ms: int = 0
    shares: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The partitions (``log#number``) that each member consumes."""


def encode_member_profile(profile: MemberProfile) -> bytes:
    """Encode a profile as bytes."""
    return json_record.encode(_MEMBER_FORMAT, _VERSION, asdict(profile))


def decode_member_profile(data: bytes) -> MemberProfile:
    """Decode the profile in `data`.

    Raises:
        FormatError: `data` is not a profile, is damaged, or has a newer version.
    """
    fields = json_record.decode(_MEMBER_FORMAT, _VERSION, data)
    return MemberProfile(fields.text("owner"), fields.texts("logs"), fields.text("pattern"))


def encode_group_assignment(assignment: GroupAssignment) -> bytes:
    """Encode an assignment as bytes."""
    shares = [
        {"member": member, "partitions": list(partitions)}
        for member, partitions in sorted(assignment.shares.items())
    ]
    fields = asdict(assignment) | {"shares": shares}
    return json_record.encode(_ASSIGNMENT_FORMAT, _VERSION, fields)


def decode_group_assignment(data: bytes) -> GroupAssignment:
    """Decode the assignment in `data`.

    Raises:
        FormatError: `data` is not an assignment, is damaged, or has a newer version.
    """
    fields = json_record.decode(_ASSIGNMENT_FORMAT, _VERSION, data)
    return GroupAssignment(
        generation=fields.integer("generation", minimum=0, maximum=MAX_ID),
        leader=fields.text("leader"),
        changed_ms=fields.integer("changed_ms"),
        shares={one.text("member"): one.texts("partitions") for one in fields.objects("shares")},
    )
