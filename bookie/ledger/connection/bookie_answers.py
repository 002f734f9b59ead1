"""Which bookies answer now, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Collection

from bookie.env import gather
from bookie.errors import BookieError
from bookie.ledger.connection.pool import BookiePool
from bookie.wire.commands import Info


async def ask_bookies(
    pool: BookiePool, bookie_ids: Collection[str], *, timeout_seconds: float
) -> dict[str, Info]:
    """What each of these bookies says of itself; without those that do not answer in time."""

    async def ask(bookie_id: str) -> Info | None:
        try:
            return await pool.connection(bookie_id).channel().info(timeout=timeout_seconds)
        except BookieError:
            return None

    answers = await gather(ask(bookie_id) for bookie_id in bookie_ids)
    return {one: info for one, info in zip(bookie_ids, answers, strict=True) if info is not None}
