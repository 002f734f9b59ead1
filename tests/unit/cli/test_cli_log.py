"""``bookie log`` on a cluster: lines become records, records become lines; who is ended by what."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from bookie.api import NewRecord
from bookie.cli import app, log_access
from bookie.errors import ChecksumError, LogTakenOverError, NoSuchLogError
from tests.unit.cli.command_process import CommandProcess
from tests.unit.cli.log_commands import TOLD_SECONDS_MAX, LogCommands, log_commands


@pytest.fixture
async def commands(tmp_path: Path, command_process: CommandProcess) -> AsyncIterator[LogCommands]:
    """Commands on a cluster without logs."""
    async with log_commands(tmp_path, command_process) as commands:
        yield commands


async def test_lines_come_back(commands: LogCommands) -> None:
    """`read` prints the lines that `append` took; each append closes the log behind it."""
    assert await commands.run("log create orders") == (0, "", "")
    status, _, said = await commands.run("log append orders", "a\nb\n")
    assert (status, said) == (0, "appended 2 records, 2 bytes, at orders#0 0…1\n")
    done = await commands.json("log append orders", "c\n\nd")
    assert done == {
        "log": "orders",
        "records": 3,
        "bytes": 2,
        "duplicates": 0,
        "partitions": {"0": {"first_offset": 2, "last_offset": 4}},
    }
    assert await commands.run("log read orders") == (0, "a\nb\nc\n\nd\n", "")
    assert await commands.run("log read orders --start 1 --end 3") == (0, "b\nc\n", "")
    assert await commands.run("log read orders --start latest") == (0, "", "")
    status, _, said = await commands.run("log append invoices", "a\n")
    assert (status, said) == (1, "bookie: there is no log invoices; create it first\n")


async def test_json_names_places_that_start_takes(commands: LogCommands) -> None:
    """Key, headers, timestamp, position and value, as text or in base64."""
    async with commands.bk.open_log("ns", partition=0) as log:
        await log.append_many(
            [
                NewRecord(b"one", b"k", {"h": b"v"}, 1_700_000_000_123),
                NewRecord(b"\xff", None, {"raw": b"\xfe"}, 1_700_000_000_200),
                NewRecord(b"three", b"\xfd", {}, 1_700_000_000_300),
            ],
            producer=("shop", 7),
        )
    status, out, _ = await commands.run("log read ns --output json")
    first, second, third = map(json.loads, out.splitlines())
    assert status == 0
    # Offset 0 is a snapshot of producers.
    assert first == {
        "partition": 0,
        "offset": 1,
        "position": first["position"],
        "timestamp": "2023-11-14T22:13:20.123Z",
        "key": "k",
        "headers": {"h": "v"},
        "value": "one",
        "producer": {"id": "shop", "sequence": 7},
    }
    assert (second["key"], second["value_base64"]) == (None, "/w==")
    assert (second["headers"], third["key_base64"]) == ({"raw_base64": "/g=="}, "/Q==")
    for start in (
        f"--start {second['position']}",
        f"--start-time {second['timestamp']}",
        "--start-time 1700000000124",
    ):
        status, out, _ = await commands.run(
            f"log read ns {start} --end {third['position']} -o json"
        )
        assert (status, [json.loads(line) for line in out.splitlines()]) == (0, [second]), start
    assert (await commands.run("log read ns --key-separator = --end 2"))[1] == "k=one\n"


async def test_keys_choose_the_partition(commands: LogCommands) -> None:
    """Equal keys stay together; a place in one partition needs its number."""
    await commands.json("log create orders --partitions 3")
    done = await commands.json(
        "log append orders --key-separator :", "".join(f"k{at % 9}:{at}\n" for at in range(90))
    )
    assert (done["records"], done["bytes"]) == (90, 90 * 2 + 170)
    found: dict[str, list[int]] = {}
    for number in range(3):
        _, out, _ = await commands.run(f"log read orders -p {number} -o json")
        for record in map(json.loads, out.splitlines()):
            found.setdefault(record["key"], []).append(int(record["value"]))
            assert record["partition"] == number
    assert found == {f"k{at}": list(range(at, 90, 9)) for at in range(9)}
    _, out, _ = await commands.run("log read orders --key-separator :")
    assert len(out.splitlines()) == 90
    for words in ("read orders --start 3", "truncate orders --before 3 --yes", "read orders -p 3"):
        status, _, said = await commands.run(f"log {words}")
        assert (status, "3 partitions" in said) == (app.EXIT_MISUSED, True), said
    status, _, said = await commands.run("log append orders --key-separator :", "a:1\nb\n")
    assert (status, said) == (1, "bookie: line 2 has no ':' behind a key\n")


async def test_a_producer_appends_lines_once(commands: LogCommands) -> None:
    """The same lines again, also more of them, and also those that are older than the window."""
    lines = [f"{at}\n" for at in range(2500)]
    await commands.json("log create orders")
    for count, new in ((2200, 2200), (2200, 0), (2500, 300)):
        done = await commands.json("log append orders --producer import-1", "".join(lines[:count]))
        assert (done["records"], done["duplicates"]) == (new, count - new)
        assert done["bytes"] == sum(len(line) - 1 for line in lines[count - new : count])
    assert (await commands.run("log read orders"))[1] == "".join(lines)


async def test_a_tail_goes_on(commands: LogCommands) -> None:
    """It prints what is there, then what comes, in whatever ledger."""
    async with commands.bk.open_log("orders") as log:
        await log.append(b"old")
        tail = await commands.start("log", "tail", "orders")
        try:
            assert tail.stdout is not None
            async with asyncio.timeout(TOLD_SECONDS_MAX):
                assert await tail.stdout.readline() == b"old\n"
                await log.append(b"new")
                assert await tail.stdout.readline() == b"new\n"
                await log.roll()
                await log.append(b"newer")
                assert await tail.stdout.readline() == b"newer\n"
        finally:
            tail.kill()
            await tail.communicate()
    status, _, said = await commands.run("log tail orders --new --start 0")
    assert (status, "not two of them" in said) == (app.EXIT_MISUSED, True)


async def test_a_reader_that_leaves_is_no_failure(commands: LogCommands) -> None:
    """As behind ``| head -1``."""
    async with commands.bk.open_log("orders") as log:
        await log.append_many([b"x" * 1000] * 5000)
    read = await commands.start("log", "read", "orders")
    assert read.stdout is not None
    assert read.stderr is not None
    assert await read.stdout.readline() == b"x" * 1000 + b"\n"
    read.stdout._transport.close()  # type: ignore[attr-defined]
    said = await read.stderr.read()
    assert (await read.wait(), said) == (app.EXIT_BROKEN_PIPE, b"")


async def test_an_owner_is_ended_only_if_that_is_confirmed(commands: LogCommands) -> None:
    """``append`` and ``roll`` take the log over, and say from whom."""
    log = await commands.bk.open_log("orders", owner="checkout")
    await log.append(b"1")
    for words in ("append orders", "roll orders"):
        status, _, said = await commands.run(f"log {words}", "2\n")
        assert status == app.EXIT_MISUSED
        assert "needs --yes: It ends the writer checkout since " in said
    await log.append(b"2")
    (rolled,) = await commands.json("log roll orders --yes")
    assert rolled == {"partition": 0, "epoch": log.epoch() + 1, "end": 2}
    with pytest.raises(LogTakenOverError):
        await log.append(b"3")
    shown = await commands.json("log show orders")
    assert shown["partitions"][0]["owner"] is None
    assert shown["partitions"][0]["open_ledgers"] == []
    assert (await commands.run("log append orders", "3\n"))[0] == 0
    assert (await commands.run("log read orders"))[1] == "1\n2\n3\n"


KILLED_WRITER = """
import asyncio, os, signal, sys
from bookie.api import connect

async def main():
    async with connect(sys.argv[1]) as bk:
        log = await bk.open_log("orders", owner="checkout")
        await log.append(b"1")
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
"""Acknowledged, and killed before anybody is told."""


async def test_records_of_a_killed_writer_are_named(commands: LogCommands) -> None:
    """They are durable, and nobody reads them yet: who looks is told how to get them."""
    assert await commands.run("log create orders") == (0, "", "")
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED_WRITER, commands.uri)
    assert await writer.wait() == -signal.SIGKILL
    for words in ("read", "show"):
        status, out, said = await commands.run(f"log {words} orders")
        assert status == 0
        assert out != "1\n"
        assert said == (
            "bookie: bookies store 1 entries behind the end of orders#0; if the writer checkout "
            "is gone, make them readable by: bookie log roll orders\n"
        )
    assert (await commands.run("log roll orders --yes"))[0] == 0
    assert await commands.run("log read orders") == (0, "1\n", "")


async def test_a_hint_that_fails_fails_no_command(
    commands: LogCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes behind the end may be damaged, and the log may be deleted meanwhile."""
    await commands.bk.create_log("orders")
    definition, partitions = await log_access.partitions_of(commands.bk, "orders", None)
    for error in ChecksumError("a digest is wrong"), NoSuchLogError("it was deleted"):
        monkeypatch.setattr(log_access, "unpublished_entries", AsyncMock(side_effect=error))
        hint = await log_access.unpublished_hint(commands.bk, partitions, definition, b"")
        assert hint == ""


async def test_logs_are_listed_and_shown(commands: LogCommands) -> None:
    """Each value of the policy has its origin; ends of open ledgers are asked of bookies."""
    assert await commands.run("log list") == (0, "there are no logs\n", "")
    assert (await commands.run("namespace create shop --set retention_bytes=1GiB"))[0] == 0
    made = await commands.json("log create shop/orders --partitions 2 --set roll_bytes=1MiB")
    assert made == {"log": "shop/orders", "mode": "writer", "partitions": 2}
    made = await commands.json("log create spark --transactional")
    assert made["mode"] == "transactional"
    status, _, said = await commands.run("log create spark")
    assert (status, "spark" in said) == (1, True)
    listed = await commands.json("log list")
    assert [(one["log"], one["mode"], one["deleting"]) for one in listed] == [
        ("spark", "transactional", False),
        ("shop/orders", "writer", False),
    ]
    assert [one["log"] for one in await commands.json("log list --namespace shop")] == [
        "shop/orders"
    ]
    async with commands.bk.open_log("shop/orders", owner="me") as log:
        await log.append_many([b"abc"] * 5, partition=1)
        shown = await commands.json("log show shop/orders")
        policy = {one["key"]: (one["value"], one["decided_by"]) for one in shown["policy"]}
        assert policy["retention_bytes"] == (2**30, "namespace")
        assert policy["roll_bytes"] == (2**20, "log")
        assert policy["quota_bytes"][1] == "default"
        empty, filled = shown["partitions"]
        assert (empty["end"], filled["end"], filled["owner"]) == (0, 5, "me")
        assert (filled["earliest"], filled["ranges"]) == (0, 1)
        assert filled["epoch"] == log.epoch(1)
        assert len(filled["open_ledgers"]) == 1
    status, out, _ = await commands.run("log show shop/orders")
    assert (status, "PARTITION" in out, "DECIDED BY" in out) == (0, True, True)


async def test_records_are_truncated_and_logs_deleted(commands: LogCommands) -> None:
    """Both ask; a truncated record is a typed error that names the earliest one."""
    async with commands.bk.open_log("orders") as log:
        for value in range(6):
            await log.append(str(value).encode(), timestamp=1000 * value)
            if value % 2:
                await log.roll()
    status, _, said = await commands.run("log truncate orders --before 2")
    assert (status, "needs --yes" in said) == (app.EXIT_MISUSED, True)
    (done,) = await commands.json("log truncate orders --before 1 --yes")
    assert done == {"partition": 0, "earliest": 1}
    (done,) = await commands.json("log truncate orders --before-time 2000 --yes")
    assert done["earliest"] == 2
    status, _, said = await commands.run("log read orders --start 0")
    assert (status, said) == (
        1,
        "bookie: offset 0 of orders#0 was truncated; the earliest one is 2\n",
    )
    _, out, _ = await commands.run("log read orders -o json")
    position = json.loads(out.splitlines()[2])["position"]
    (done,) = await commands.json(f"log truncate orders --before {position} --yes")
    assert done["earliest"] == 4
    assert (await commands.run("log read orders"))[1] == "4\n5\n"
    status, _, said = await commands.run("log truncate orders --before 9 --yes")
    assert (status, "last closed range" in said) == (1, True)
    assert (await commands.run("log delete orders"))[0] == app.EXIT_MISUSED
    assert await commands.json("log delete orders --yes") == {"log": "orders", "deleted": True}
    assert (await commands.run("log read orders"))[:2] == (1, "")
    assert [ledger async for ledger in commands.bk.list_ledgers()] == []


async def test_a_bench_leaves_nothing_behind(commands: LogCommands) -> None:
    """It measures writing, reading and tailing, and counts the same records twice."""
    words = "bench log --seconds 0.2 --partitions 2 --size 100 --batch 10 --in-flight 4"
    written, read, tailed = await commands.json(words)
    assert [one["phase"] for one in (written, read, tailed)] == ["write", "read", "tail"]
    assert written["entries"] == read["entries"] > 0
    assert written["bytes"] == read["bytes"] == 100 * read["entries"]
    assert tailed["entries"] > 0
    assert [name async for name in commands.bk.list_logs()] == []
    kept, *_ = await commands.json(f"{words} --keep")
    assert [name async for name in commands.bk.list_logs()] == [kept["log"]]


async def test_names_of_logs_complete(
    commands: LogCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the shell; a store that does not answer completes nothing, and says nothing."""
    for name in ("orders", "orange", "invoices"):
        await commands.bk.create_log(name)
    monkeypatch.setenv("_BOOKIE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "bookie log read or")
    monkeypatch.setenv("COMP_CWORD", "3")
    for uri, names in ((commands.uri, "orange\norders\n"), ("memory://empty", "")):
        monkeypatch.setenv("BOOKIE_METADATA", uri)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bookie"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, said = await process.communicate()
        assert (out.decode().strip(), said) == (names.strip(), b"")
