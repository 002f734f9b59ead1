"""The records of a group of consumers in the metadata store: its members and its assignment.

Canonical JSON (:mod:`bookie.metadata.json_record`), version 1: formats ``bookie-group-member`` and
``bookie-group-assignment``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bookie.ids import MAX_ID
from bookie.metadata import json_record

_MEMBER_FORMAT = "bookie-group-member"
_ASSIGNMENT_FORMAT = "bookie-group-assignment"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class MemberProfile:
    """One member of a group."""

    owner: str = ""
    """Host and process, for people."""
    logs: tuple[str, ...] = ()
    """The names of the logs that the group has to consume."""
    pattern: str = ""
    """Further logs of one namespace: ``orders-*``; none if empty."""


@dataclass(frozen=True, slots=True)
class GroupAssignment:
    """One generation of a group."""

    generation: int = 0
    """Rises by one with each change."""
    leader: str = ""
    """The member that wrote it; for people."""
    changed_ms: int = 0
    shares: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The partitions (``log#number``) of each member."""


def encode_member_profile(profile: MemberProfile) -> bytes:
    """The bytes of a profile."""
    fields = {"owner": profile.owner, "logs": list(profile.logs), "pattern": profile.pattern}
    return json_record.encode(_MEMBER_FORMAT, _VERSION, fields)


def decode_member_profile(data: bytes) -> MemberProfile:
    """The profile in `data`.

    Raises:
        FormatError: not a profile, damaged, or of a newer version.
    """
    fields = json_record.decode(_MEMBER_FORMAT, _VERSION, data)
    return MemberProfile(fields.text("owner"), fields.texts("logs"), fields.text("pattern"))


def encode_group_assignment(assignment: GroupAssignment) -> bytes:
    """The bytes of an assignment."""
    fields = {
        "generation": assignment.generation,
        "leader": assignment.leader,
        "changed_ms": assignment.changed_ms,
        "shares": [
            {"member": member, "partitions": list(partitions)}
            for member, partitions in sorted(assignment.shares.items())
        ],
    }
    return json_record.encode(_ASSIGNMENT_FORMAT, _VERSION, fields)


def decode_group_assignment(data: bytes) -> GroupAssignment:
    """The assignment in `data`.

    Raises:
        FormatError: not an assignment, damaged, or of a newer version.
    """
    fields = json_record.decode(_ASSIGNMENT_FORMAT, _VERSION, data)
    return GroupAssignment(
        generation=fields.integer("generation", minimum=0, maximum=MAX_ID),
        leader=fields.text("leader"),
        changed_ms=fields.integer("changed_ms"),
        shares={one.text("member"): one.texts("partitions") for one in fields.objects("shares")},
    )
