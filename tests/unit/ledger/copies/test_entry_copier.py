"""Copies between real bookies: the source of the next batch, and the bookie that takes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie.api import connect
from bookie.cluster.cookies import CookieManager
from bookie.errors import BookieError, BookieUnreachableError
from bookie.ledger.copies.entry_copier import EntryCopier
from tests.unit.ledger.real_cluster import real_cluster, until

PAYLOADS = [b"%d" % number * 30 for number in range(25)]


@pytest.mark.parametrize("how", ["silent", "gone"])
async def test_a_source_that_does_not_answer_is_not_asked_for_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It would cost a timeout each time. One that is not registered is asked last."""
    monkeypatch.setattr("bookie.ledger.copies.entry_copier.BATCH_ENTRIES_MAX", 2)
    async with real_cluster(tmp_path, 3) as cluster, connect(cluster.uri) as bk:
        writer = await bk.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=3)
        await writer.append_many(PAYLOADS)
        metadata = await writer.close()
        first, target, _ = metadata.last_fragment.bookies
        client = bk._connected
        asked = 0
        channel = client.pool.connection(first).channel()
        read = type(channel).read

        async def unanswered(self: Any, *args: Any, **options: Any) -> Any:
            nonlocal asked
            if self is channel:
                asked += 1
                raise BookieUnreachableError(f"bookie {first} does not answer")
            return await read(self, *args, **options)

        if how == "gone":
            await cluster.stop(int(first[1:]))
            await until(lambda: first not in client.directory.all())
        monkeypatch.setattr(type(channel), "read", unanswered)
        copier = EntryCopier(client, metadata, target)
        assert await copier.copy(0, len(PAYLOADS) - 1) == ""
        assert copier.entries == len(PAYLOADS)
        assert asked == (1 if how == "silent" else 0)


async def test_only_the_incarnation_that_the_store_names_takes_entries(tmp_path: Path) -> None:
    """The bookie may have been replaced after a look at its copies."""
    async with real_cluster(tmp_path, 4) as cluster, connect(cluster.uri) as bk:
        writer = await bk.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=3)
        await writer.append_many(PAYLOADS)
        metadata = await writer.close()
        (target,) = set(bk.bookies()) - set(metadata.last_fragment.bookies)
        cookies = CookieManager(cluster.store)
        cookie = await cookies.read_latest(target)
        assert cookie is not None
        renewed = await cookies.write(replace(cookie.value, incarnation="another"), cookie.version)
        last = len(PAYLOADS) - 1
        with pytest.raises(BookieError, match="another incarnation"):
            await EntryCopier(bk._connected, metadata, target).copy(0, last)
        await cookies.write(cookie.value, renewed.version)
        copier = EntryCopier(bk._connected, metadata, target)
        assert await copier.copy(0, last) == ""
        assert copier.entries == len(PAYLOADS)
