"""Bookies that speak TLS, as processes: everything goes on by TLS, and nobody else gets in."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bookie.api import BookKeeper
from bookie.config import Transport
from bookie.daemon.local.process import child_environment
from bookie.errors import BookieError
from bookie.security import authority
from bookie.security.authority import settings_for, variables_for
from bookie.sync import connect as connect_sync
from tests.fault.daemon_cluster import BOOKIES, Appending
from tests.fault.daemon_process import Home
from tests.fault.secure_cluster import HOSTS, SecureCluster, new_authority, secure_cluster
from tests.unit.ledger.real_cluster import until
from tests.unit.security.odd_certificates import issue_odd

SECONDS_MAX = 300.0
"""What is to happen has happened by then, even on a busy machine."""

PATIENT: Mapping[str, Any] = {"add_timeout_seconds": 60.0, "replace_after_seconds": 60.0}
"""A bookie that restarts on a busy machine is waited for."""

REFUSED_SECONDS_MAX = 45.0
"""A refusal comes after the add timeout of 1 s; before TLS had sentences, it came after minutes."""


MUST_NOT_ARRIVE = b"this payload must not arrive"


async def command(cluster: SecureCluster, *words: str, **variables: str) -> tuple[int, str, str]:
    """Exit status and output of a command of a client with a certificate."""
    environment = child_environment(os.environ) | variables_for(cluster.authority, "client")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bookie", *words, "--metadata", cluster.uri),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment | variables,
    )
    out, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), said.decode()


async def listed_tls(cluster: SecureCluster) -> list[str]:
    """How an operator sees which bookies speak TLS."""
    _, out, _ = await command(cluster, "cluster", "bookies", "-o", "json")
    return [str(one["tls"]) for one in json.loads(out)]


async def test_a_cluster_by_tls(tmp_path: Path) -> None:
    """Append, read, recover, the client without an event loop, and commands."""
    async with secure_cluster(tmp_path) as cluster:
        for name in BOOKIES:
            await cluster.start(name)
        async with cluster.connect() as client:
            assert {
                (one.name, one.protocol)
                for registration in client.bookies().values()
                for one in registration.endpoints
            } - {("frames", "frames+tls")} == {("bookie", "grpcs"), ("http", "https")}
            writer = await client.create_ledger()
            for number in range(10):
                await writer.append(b"%d" % number)
            reader = await client.open_ledger(writer.ledger_id, recover=True)
            found = [entry.payload async for entry in reader.read(0, reader.last_entry_id)]
            assert found == [b"%d" % number for number in range(10)]
            await append_one(client, MUST_NOT_ARRIVE)  # here it arrives, and is found
            assert any(stored_files(home, MUST_NOT_ARRIVE) for home in cluster.homes.values())

        def without_a_loop() -> int:
            files: Any = settings_for(cluster.authority, "client")
            with connect_sync(cluster.uri, **files) as client:
                ledger = client.create_ledger()
                return ledger.append(b"x")

        assert await asyncio.to_thread(without_a_loop) == 0
        assert await listed_tls(cluster) == ["yes"] * 3
        status, out, said = await command(cluster, "cluster", "health", "--deep", "-o", "json")
        assert status == 0, out + said
        status, out, said = await command(cluster, "node", "readonly", "b1", "on", "-o", "json")
        assert (status, json.loads(out)["read_only"]) == (0, True), said
        none = {"BOOKIE_SECURITY__CERTIFICATE_FILE": "", "BOOKIE_SECURITY__KEY_FILE": ""}
        status, _, said = await command(cluster, "node", "info", "b1", **none)
        assert (status, "anonymous lacks the role reader" in said) == (1, True), said
        none["BOOKIE_SECURITY__CA_FILE"] = ""
        status, _, said = await command(cluster, "node", "info", "b1", **none)
        assert (status, "bookie b1 speaks only TLS" in said) == (1, True), said


async def test_bookies_repair_each_other_by_tls(tmp_path: Path) -> None:
    """A bookie that is gone is replaced: the others copy its entries over TLS."""
    repair = {"enabled": True, "lost_bookie_delay_seconds": 0.5, "retry_seconds_max": 2.0}
    async with secure_cluster(tmp_path) as cluster:
        cluster.repair = repair
        for name in (*BOOKIES, "b4"):
            await cluster.start(name)
        async with cluster.connect() as client:
            writer = await client.create_ledger()
            await writer.append_many([b"%d" % number for number in range(100)])
            await writer.close()
            gone = (await client.ledger_metadata(writer.ledger_id)).last_fragment.bookies[0]
            cluster.daemons[gone].process.kill()
            await until_replaced(client, writer.ledger_id, gone)
            reader = await client.open_ledger(writer.ledger_id)
            found = [entry.payload async for entry in reader.read(0, reader.last_entry_id)]
            assert found == [b"%d" % number for number in range(100)]


async def until_replaced(client: BookKeeper, ledger_id: int, gone: str) -> None:
    """Wait until a closed ledger names another bookie in its place."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            metadata = await client.ledger_metadata(ledger_id)
            if gone not in metadata.last_fragment.bookies:
                return
            await asyncio.sleep(0.1)


Case = Callable[[SecureCluster, Path], tuple[Mapping[str, object], Mapping[str, object]]]
"""Makes the sections ``[security]`` of a bookie and of a client."""


def _ca(home: Path) -> str:
    return str(authority.certificate_path(home, "ca"))


def _expired(cluster: SecureCluster, name: str, hosts: tuple[str, ...]) -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authority, "_CLOCK_SKEW", datetime.timedelta(days=3))
        authority.issue(cluster.authority, name, hosts, days=-1)
    return settings_for(cluster.authority, name)


def _early(cluster: SecureCluster) -> dict[str, str]:
    issue_odd(cluster.authority, "early", days=(1, 30))
    return settings_for(cluster.authority, "early")


def _elsewhere(cluster: SecureCluster) -> dict[str, str]:
    authority.issue(cluster.authority, "elsewhere", ["elsewhere.example"])
    return settings_for(cluster.authority, "elsewhere")


REFUSED: dict[str, tuple[Case, str]] = {
    "a client without TLS": (
        lambda c, _: (settings_for(c.authority, "bookie"), {}),
        "bookie b1 speaks only TLS: set security.ca_file",
    ),
    "a bookie without TLS": (
        lambda c, _: ({}, settings_for(c.authority, "client")),
        "bookie b1 does not speak TLS, and this client must not use plaintext",
    ),
    "a client without a certificate": (
        lambda c, _: (settings_for(c.authority, "bookie"), {"ca_file": _ca(c.authority)}),
        "refuses this client's certificate",
    ),
    "a client of another CA": (
        lambda c, other: (
            settings_for(c.authority, "bookie"),
            settings_for(other, "client") | {"ca_file": _ca(c.authority)},
        ),
        "refuses this client's certificate",
    ),
    "a client whose certificate has expired": (
        lambda c, _: (settings_for(c.authority, "bookie"), _expired(c, "old", ())),
        "refuses this client's certificate",
    ),
    "a client whose certificate is not valid yet": (
        lambda c, _: (settings_for(c.authority, "bookie"), _early(c)),
        "refuses this client's certificate",
    ),
    "a bookie whose certificate is not valid yet": (
        lambda c, _: (_early(c), settings_for(c.authority, "client")),
        "its certificate is not valid yet",
    ),
    "a bookie of another CA": (
        lambda c, other: (settings_for(other, "bookie"), settings_for(c.authority, "client")),
        "its certificate is not signed by a CA in security.ca_file",
    ),
    "a bookie whose certificate has expired": (
        lambda c, _: (_expired(c, "old", HOSTS), settings_for(c.authority, "client")),
        "its certificate has expired",
    ),
    "a bookie with the certificate of another host": (
        lambda c, _: (_elsewhere(c), settings_for(c.authority, "client")),
        "its certificate is not for this host",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_refused(case: str, tmp_path: Path) -> None:
    """One clear sentence, soon, for a writer and for a reader; and nothing was stored."""
    make, sentence = REFUSED[case]
    async with secure_cluster(tmp_path) as cluster:
        bookie, client = make(cluster, new_authority(tmp_path / "other"))
        daemon = await cluster.start("b1", bookie)
        started = time.monotonic()
        async with cluster.connect("", add_timeout_seconds=1.0, **client) as connected:
            with pytest.raises(BookieError, match=sentence):
                await append_one(connected, MUST_NOT_ARRIVE)
            if not sentence.startswith("bookie b1"):  # else there is no ledger to read
                with pytest.raises(BookieError, match=sentence):
                    await read_one(connected)
        assert time.monotonic() - started < REFUSED_SECONDS_MAX
        assert daemon.process.returncode is None
        daemon.process.terminate()
        await daemon.end()
        assert stored_files(cluster.homes["b1"], MUST_NOT_ARRIVE) == []


def stored_files(home: Home, payload: bytes) -> list[Path]:
    """The files of a bookie that has ended in which a payload stands."""
    files = [path for path in home.path.rglob("*") if path.is_file()]
    return [path for path in files if payload in path.read_bytes()]


async def append_one(client: BookKeeper, payload: bytes) -> None:
    """Append to a new ledger on one bookie."""
    writer = await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    await writer.append(payload)


async def read_one(client: BookKeeper) -> None:
    reader = await client.open_ledger(0)
    await anext(aiter(reader.read(0, 0)))


def put(files: Mapping[str, bytes], home: Path) -> None:
    """Replace files, each at once, as a program that renews certificates does."""
    for name, content in files.items():
        temporary = home / f"{name}.new"
        temporary.write_bytes(content)
        temporary.replace(home / name)


async def reloaded(cluster: SecureCluster) -> None:
    for daemon in cluster.daemons.values():
        daemon.lines.clear()
        await daemon.until("certificate_reloaded")


@pytest.mark.parametrize("transport", ["grpc", "frames"])
async def test_a_new_ca_in_the_middle_of_a_stream(tmp_path: Path, transport: Transport) -> None:
    """Both CAs are trusted, then all certificates are new, then the old CA goes: no append fails.

    In the end bookies restart, and the writer connects to them again with its new certificate.
    """
    async with secure_cluster(tmp_path) as cluster:
        live, new = cluster.authority, new_authority(tmp_path / "new")
        old_files = {path.name: path.read_bytes() for path in live.iterdir()}
        new_files = {path.name: path.read_bytes() for path in new.iterdir()}
        former = tmp_path / "former"
        former.mkdir()
        put(old_files, former)
        for name in BOOKIES:
            await cluster.start(name)
        connected = cluster.connect(transport=transport, **PATIENT)
        async with connected as client, asyncio.TaskGroup() as group:
            appending = Appending(await client.create_ledger(ack_quorum_size=2))
            running = group.create_task(appending.run())
            await appending.goes_on()
            pool = client._connected.pool
            slots = appending.writer._lanes._slots
            channels = {name: pool.connection(name).channel() for name in BOOKIES}
            for files in (
                {"ca.pem": old_files["ca.pem"] + new_files["ca.pem"]},
                {name: new_files[name] for name in new_files if name != "ca.pem"},
                {"ca.pem": new_files["ca.pem"]},
            ):
                put(files, live)
                await reloaded(cluster)
                await appending.goes_on()
                # No connection was closed, although the client knows of the files, too.
                assert channels == {name: pool.connection(name).channel() for name in BOOKIES}
            with pytest.raises(BookieError, match="not signed by a CA"):
                async with cluster.connect(
                    "", add_timeout_seconds=1.0, **settings_for(former, "client")
                ) as stranger:
                    await append_one(stranger, b"")
            for name in BOOKIES:
                await cluster.restart(name)
                await appending.goes_on()
                await until(lambda: all(slot.lane.is_up for slot in slots))
                # A channel of gRPC has the files of its beginning, a connection of frames its own.
                is_same = pool.connection(name).channel() is channels[name]
                assert is_same == (transport == "frames")
            running.cancel()
            await asyncio.wait([running])
            assert len((await client.ledger_metadata(appending.writer.ledger_id)).fragments) == 1
            await appending.check(client)


async def test_a_rolling_change_to_tls(tmp_path: Path) -> None:
    """Bookies get certificates beside plaintext, then clients. Plaintext ends, and roles begin.

    A writer without TLS, and one with it, append all the time; no append fails.
    """
    async with secure_cluster(tmp_path) as cluster:
        own = settings_for(cluster.authority, "bookie")
        for_all = {**own, "require_roles": False}
        both = {**for_all, "allow_plaintext": True}
        for name in BOOKIES:
            await cluster.start(name, {})
        async with asyncio.TaskGroup() as group, cluster.connect("", **PATIENT) as before:
            first = Appending(await before.create_ledger(ack_quorum_size=2))
            running = group.create_task(first.run())
            for name in BOOKIES:
                await cluster.restart(name, both)
                await first.goes_on()
            assert await listed_tls(cluster) == ["both"] * 3
            async with cluster.connect(**PATIENT) as after:
                second = Appending(await after.create_ledger(ack_quorum_size=2))
                replaced = group.create_task(second.run())
                await second.goes_on()
                running.cancel()
                await asyncio.wait([running])
                await first.check(before)
                await before.aclose()
                for section in (for_all, own):  # plaintext ends, then roles begin
                    for name in BOOKIES:
                        await cluster.restart(name, section)
                        await second.goes_on()
                replaced.cancel()
                await asyncio.wait([replaced])
                await second.check(after)
                assert await listed_tls(cluster) == ["yes"] * 3
                assert {
                    one.protocol
                    for registration in after.bookies().values()
                    for one in registration.endpoints
                } - {"frames+tls"} == {"grpcs", "https"}


async def test_plaintext_that_is_allowed_is_told(tmp_path: Path) -> None:
    """The log says so at the start, and so does a metric as long as the bookie runs."""
    async with secure_cluster(tmp_path) as cluster:
        daemon = await cluster.start("b1", {"allow_plaintext": True})
        said = [json.loads(line) for line in daemon.lines]
        (warning,) = [line for line in said if line["event"] == "plaintext_allowed"]
        assert warning["setting"] == "security.allow_plaintext"
        assert await cluster.metric("b1", "bookie_plaintext_allowed") == 1
        await cluster.start("b2", settings_for(cluster.authority, "bookie"))
        assert await cluster.metric("b2", "bookie_plaintext_allowed") == 0
        expiry = await cluster.metric(
            "b2", 'bookie_certificate_expiry_timestamp_seconds{file="ca"}'
        )
        assert expiry > time.time() + 3000 * 86400
