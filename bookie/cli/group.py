"""``bookie group``: lists and shows groups of consumers, which share the partitions of logs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from bookie.cli.options import Metadata, Output, OutputFormat, PasswordFile, read_password
from bookie.cli.output import Record, print_record, print_records
from bookie.cli.stores import on_cluster, on_instance

if TYPE_CHECKING:
    from bookie.log.catalog.group_metadata import GroupAssignment, MemberProfile
    from bookie.log.consume.group import GroupStatus
    from bookie.metadata.store import MetadataStore

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.command("list")
def list_(metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """List all groups that ever had a member."""
    print_records(on_instance(metadata, _list), output, empty="there are no groups")


async def _list(store: MetadataStore) -> list[Record]:
    from bookie.log.catalog.groups import ConsumerGroup, list_groups

    records: list[Record] = []
    for name in await list_groups(store):
        group = ConsumerGroup(store, name)
        assignment = (await group.read_assignment()).value
        records.append(
            {
                "group": name,
                "members": len(await store.get_children(group.members_key)),
                "partitions": sum(map(len, assignment.shares.values())),
                "generation": assignment.generation,
            }
        )
    return records


@app.command("show")
def show(
    group: Annotated[str, typer.Argument(metavar="NAME", help="The group.")],
    metadata: Metadata,
    password_file: PasswordFile = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show a group's members, and the member and the progress of each partition.

    A member that has died stays listed until its session ends.
    """
    password = read_password(password_file)
    found = on_cluster(metadata, lambda bk: bk.group_status(group, password=password))
    members = [
        _member(name, profile, found.assignment) for name, profile in sorted(found.members.items())
    ]
    partitions = _partitions(found)
    summary = _summary(found)
    if output is OutputFormat.JSON:
        print(json.dumps({**summary, "members": members, "partitions": partitions}, indent=2))
        return
    print_record(summary, output)
    print()
    print_records(members, output, empty="no member is there now")
    print()
    print_records(partitions, output, empty="no partition is assigned")


def _summary(found: GroupStatus) -> Record:
    from bookie.env.clock import moment_text

    generation = found.assignment.generation
    return {
        "group": found.name,
        "generation": generation,
        "leader": found.leader or None,
        "changed": moment_text(found.assignment.changed_ms) if generation else None,
        "lag": found.lag,
    }


def _partitions(found: GroupStatus) -> list[Record]:
    """Return a record for each assigned partition.

    If the member of a partition has not started yet, the partition has no cursor, offset and lag.
    """
    cursors = {str(one.partition): one for one in found.cursors}
    records: list[Record] = []
    for member, partitions in sorted(found.assignment.shares.items()):
        for partition in partitions:
            cursor = cursors.get(partition)
            records.append(
                {
                    "partition": partition,
                    "member": member,
                    "offset": None if cursor is None else cursor.cursor.offset,
                    "end": None if cursor is None else cursor.end_offset,
                    "lag": None if cursor is None else cursor.lag,
                }
            )
    return records


def _member(name: str, profile: MemberProfile, assignment: GroupAssignment) -> Record:
    return {
        "member": name,
        "owner": profile.owner,
        "partitions": len(assignment.shares.get(name, ())),
        "logs": list(profile.logs),
        "pattern": profile.pattern or None,
    }
