"""``bookie log cursors``, ``lag``, ``reset``, ``sweep`` and ``bookie group``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.cli.log_access import client_of
from bookie.log.catalog.logs import LogName, LogPartition
from tests.unit.cli.command_process import CommandProcess
from tests.unit.cli.log_commands import LogCommands, log_commands


@pytest.fixture
async def commands(tmp_path: Path, command_process: CommandProcess) -> AsyncIterator[LogCommands]:
    """Commands on a cluster with the log ``orders``: ten records in each of two partitions."""
    async with log_commands(tmp_path, command_process) as commands:
        await commands.bk.create_log("orders", partitions=2)
        async with commands.bk.open_log("orders") as log:
            for number in range(2):
                for value in range(10):
                    await log.append(b"%d" % value, partition=number, timestamp=1000 * value)
        yield commands


async def test_cursors_tell_their_lag_and_are_reset(commands: LogCommands) -> None:
    """By partition, to a place or to a time."""
    assert await commands.run("log cursors orders") == (0, "the log orders has no cursors\n", "")
    await commands.bk.cursors("orders").create("billing", "earliest")
    await commands.bk.cursors("orders").commit("billing", 4, partition=1)
    found = await commands.json("log cursors orders")
    assert [(one["cursor"], one["partition"], one["offset"]) for one in found] == [
        ("billing", 0, 0),
        ("billing", 1, 4),
    ]
    assert [one["lag"] for one in await commands.json("log lag orders")] == [10, 6]
    done = await commands.json("log reset orders billing --to latest")
    assert done == [{"partition": 0, "offset": 10}, {"partition": 1, "offset": 10}]
    done = await commands.json("log reset orders billing --to 7 --partition 1")
    assert done == [{"partition": 1, "offset": 7}]
    assert [one["lag"] for one in await commands.json("log lag orders billing")] == [0, 3]
    await commands.json("log reset orders billing --to-time 1970-01-01T00:00:02+00:00")
    assert [one["offset"] for one in await commands.json("log lag orders billing")] == [2, 2]


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        ("lag orders nobody", 1, "there is no cursor nobody on orders"),
        ("lag invoices", 1, "there is no log invoices"),
        ("reset orders billing", 2, "give --to or --to-time"),
        ("reset orders billing --to soon", 2, "earliest, latest, OFFSET or LEDGER:ENTRY"),
        ("reset orders billing --to-time 2026-01-31", 2, "time zone"),
        ("reset orders billing --to 3", 2, "2 partitions"),
        ("sweep --older-than 1", 2, "a unit s, m, h or d"),
    ],
)
async def test_mistakes_are_one_sentence(
    commands: LogCommands, words: str, status: int, sentence: str
) -> None:
    """Of the right kind, and nothing is printed."""
    found, out, said = await commands.run(f"log {words}")
    assert (found, out, said.count("\n")) == (status, "", 1)
    assert sentence in said


async def test_a_group_shows_members_and_lag(commands: LogCommands) -> None:
    """The consumer of each partition, and the progress of the group."""
    assert await commands.run("group list") == (0, "there are no groups\n", "")
    assert (await commands.run("group show workers"))[::2] == (
        1,
        "bookie: there is no group workers\n",
    )
    async with commands.bk.join_group("workers", logs=["orders"], member="one") as member:
        for _ in range(20):
            record = await anext(member)
            if record.position.offset == 4:
                await member.commit(record)
        shown = await commands.json("group show workers")
        (seen,) = shown["members"]
        assert (seen["member"], seen["partitions"], seen["logs"]) == ("one", 2, ["orders"])
        assert shown["partitions"] == [
            {"partition": f"orders#{number}", "member": "one", "offset": 5, "end": 10, "lag": 5}
            for number in range(2)
        ]
        (listed,) = await commands.json("group list")
        assert listed["group"] == "workers"
        assert (listed["members"], listed["partitions"]) == (1, 2)


async def test_a_sweep_tells_what_it_would_do(commands: LogCommands) -> None:
    """First for show, then in earnest; a ledger of a deleted log goes."""
    tags = client_of(commands.bk).tags

    gone = LogPartition(LogName.parse("gone"))
    left = await commands.bk.create_ledger(custom_metadata=tags(gone, "an-id"))
    await left.close()
    done = await commands.json("log sweep")
    assert (done["ledgers"], done["failures"]) == ([], {})
    for words in ("--dry-run", ""):
        done = await commands.json(f"log sweep --older-than 0s {words}")
        assert (done["dry_run"], done["ledgers"]) == (bool(words), [left.ledger_id])
    done = await commands.json("log sweep --older-than 0s")
    assert done["ledgers"] == []
    assert (await commands.run("log read orders -p 0"))[1] == "".join(
        f"{value}\n" for value in range(10)
    )
