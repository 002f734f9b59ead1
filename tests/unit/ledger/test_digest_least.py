"""Whoever writes metadata may weaken a digest there; `client.digest_least` refuses such ledgers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from bookie.api import UNCLAIMED, BookKeeper, DigestName, connect
from bookie.cli import app
from bookie.entry.digest import DIGESTS_BY_STRENGTH, DigestType, is_weaker
from bookie.errors import ConfigurationError, UnauthorizedError, WeakDigestError
from bookie.ledger import ledger_client
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.ledger.recover.driver import recover_ledger
from bookie.log.catalog.log_policy import LogPolicy
from bookie.metadata.versioned import Versioned
from tests.unit.ledger.real_cluster import RealCluster

PASSWORD = b"secret"
STRENGTH: list[DigestName] = ["dummy", "crc32", "crc32c", "hmac"]
REFUSED = "has the digest {}, and client.digest_least is {}"


def careful(cluster: RealCluster, least: DigestName = "hmac") -> BookKeeper:
    return connect(cluster.uri, digest_least=least)


async def downgrade(cluster: RealCluster, ledger_id: int, digest: DigestType) -> None:
    """Write another digest into metadata, as whoever writes metadata can."""
    ledgers = LedgerManager(cluster.store)
    found = await ledgers.read(ledger_id)
    await ledgers.write(replace(found.value, digest_type=digest), found.version)


def test_the_order() -> None:
    assert [one.name.lower() for one in DIGESTS_BY_STRENGTH] == STRENGTH
    assert set(DIGESTS_BY_STRENGTH) == set(DigestType)
    for one, other in itertools.product(DigestType, repeat=2):
        names: list[str] = [*STRENGTH]
        places = names.index(one.name.lower()), names.index(other.name.lower())
        assert is_weaker(one, other) is (places[0] < places[1])


async def test_each_digest_under_each_setting(bk: BookKeeper, cluster: RealCluster) -> None:
    ledgers: dict[DigestName, int] = {}
    for digest in STRENGTH:
        async with await bk.create_ledger(digest_type=digest, password=PASSWORD) as writer:
            await writer.append(b"x")
            ledgers[digest] = writer.ledger_id
    for least in STRENGTH:
        async with careful(cluster, least) as client:
            for digest, ledger_id in ledgers.items():
                if STRENGTH.index(digest) < STRENGTH.index(least):
                    refused = REFUSED.format(digest, least)
                    with pytest.raises(WeakDigestError, match=refused):
                        await client.open_ledger(ledger_id, password=PASSWORD)
                    with pytest.raises(WeakDigestError, match=f"a new ledger {refused}"):
                        await client.create_ledger(digest_type=digest)
                else:
                    reader = await client.open_ledger(ledger_id, password=PASSWORD)
                    assert [one.payload async for one in reader.read()] == [b"x"]
                    await (await client.create_ledger(digest_type=digest)).close()


async def test_a_downgraded_ledger(bk: BookKeeper, cluster: RealCluster) -> None:
    """Refused before a bookie is asked: nothing is read, and nothing is fenced."""
    writer = await bk.create_ledger(digest_type="hmac", password=PASSWORD)
    await writer.append(b"mine")
    for weaker in (DigestType.DUMMY, DigestType.CRC32, DigestType.CRC32C):
        await downgrade(cluster, writer.ledger_id, weaker)
        sentence = REFUSED.format(weaker.name.lower(), "hmac")
        async with careful(cluster) as client:
            for recover in (False, True):
                with pytest.raises(WeakDigestError, match=f"ledger {writer.ledger_id} {sentence}"):
                    await client.open_ledger(writer.ledger_id, password=PASSWORD, recover=recover)
            with pytest.raises(WeakDigestError, match=sentence):
                await client._connected.recover(writer.ledger_id, PASSWORD)
            with pytest.raises(UnauthorizedError):
                await client.open_ledger(writer.ledger_id, password=b"another")
            assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.OPEN
            await writer.append(b"the writer was not fenced")
    async with careful(cluster) as client:  # he may still delete it
        await client.delete_ledger(writer.ledger_id)


async def test_without_the_setting_bytes_are_believed(bk: BookKeeper, cluster: RealCluster) -> None:
    """This is the reason for the setting: the digest itself becomes a part of the payload."""
    async with await bk.create_ledger(digest_type="hmac", password=PASSWORD) as writer:
        await writer.append(b"mine")
    await downgrade(cluster, writer.ledger_id, DigestType.DUMMY)
    reader = await bk.open_ledger(writer.ledger_id, password=PASSWORD)
    (entry,) = [one async for one in reader.read()]
    assert entry.payload.endswith(b"mine")
    assert len(entry.payload) == 24


async def test_an_open_reader_keeps_its_digest(bk: BookKeeper, cluster: RealCluster) -> None:
    """A change of metadata after the ledger was opened changes no check."""
    writer = await bk.create_ledger(digest_type="hmac", password=PASSWORD)
    await writer.append(b"mine")
    async with careful(cluster) as client:
        reader = await client.open_ledger(writer.ledger_id, password=PASSWORD)
        await downgrade(cluster, writer.ledger_id, DigestType.DUMMY)
        await writer.append(b"too")
        await reader.refresh()
        assert reader.metadata.digest_type is DigestType.DUMMY
        assert [one.payload async for one in reader.read_unconfirmed()] == [b"mine", b"too"]


async def test_a_downgrade_during_a_recovery(
    bk: BookKeeper, cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await bk.create_ledger(digest_type="hmac", password=PASSWORD)
    await writer.append(b"mine")

    async def changed(*arguments: object) -> Versioned[LedgerMetadata]:
        found = await recover_ledger(*arguments)  # type: ignore[arg-type]
        return Versioned(replace(found.value, digest_type=DigestType.DUMMY), found.version)

    monkeypatch.setattr(ledger_client, "recover_ledger", changed)
    async with careful(cluster) as client:
        with pytest.raises(WeakDigestError):
            await client.open_ledger(writer.ledger_id, password=PASSWORD, recover=True)


async def test_an_unclaimed_ledger(bk: BookKeeper, cluster: RealCluster) -> None:
    made = await bk.create_ledger(custom_metadata={UNCLAIMED: b""}, password=PASSWORD)
    async with careful(cluster) as client:
        with pytest.raises(WeakDigestError):
            await client.claim_ledger(made.ledger_id, password=PASSWORD)
    assert await (await bk.claim_ledger(made.ledger_id, password=PASSWORD)).append(b"x") == 0


async def test_logs(bk: BookKeeper, cluster: RealCluster) -> None:
    """Logs have CRC-32C by default; the policy of a log says another digest."""
    await bk.create_log("careful", policy=LogPolicy(digest="hmac"))
    for name in ("plain", "careful"):
        async with bk.open_log(name) as log:
            await log.append(b"x")
    async with careful(cluster) as client:
        found = [one.value async for one in client.read_log("careful")]
        assert found == [b"x"]
        async with client.open_log("careful") as log:
            await log.append(b"y")
        with pytest.raises(WeakDigestError):
            [one async for one in client.read_log("plain")]
        with pytest.raises(WeakDigestError):
            await client.open_log("plain")


def test_what_is_no_digest() -> None:
    with pytest.raises(ConfigurationError, match="digest_least"):
        connect("memory://x", digest_least="md5")  # type: ignore[arg-type]


async def test_commands(
    bk: BookKeeper,
    cluster: RealCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import asyncio

    async with await bk.create_ledger() as writer:
        await writer.append(b"x")
    words = ["ledger", "read", str(writer.ledger_id), "-m", cluster.uri]
    assert await asyncio.to_thread(app.run, words) == 0
    monkeypatch.setenv("BOOKIE_CLIENT__DIGEST_LEAST", "hmac")
    assert await asyncio.to_thread(app.run, words) == 1
    said = capsys.readouterr().err
    assert said == f"bookie: ledger {writer.ledger_id} {REFUSED.format('crc32c', 'hmac')}\n"
