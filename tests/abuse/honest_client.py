"""A client that keeps the rules, in a process of its own, while somebody abuses its bookie.

``python -m tests.abuse.honest_client URI`` appends an entry of 1 KB every 20 ms to a ledger of one
copy. Each acknowledged append is a line of JSON: when it began (CLOCK_MONOTONIC), and how long it
took. When its input ends, it reads everything back, and the last line says what it found.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from bookie.api import connect

PERIOD_SECONDS = 0.02
ENTRY_BYTES = 1000
PATIENCE_SECONDS = 120.0


def payload_of(entry_id: int) -> bytes:
    """What it appends as this entry."""
    return entry_id.to_bytes(8, "big") * (ENTRY_BYTES // 8)


def _say(**line: object) -> None:
    print(json.dumps(line), flush=True)


async def _main(uri: str) -> None:
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), end.set)
    async with connect(
        uri,
        add_timeout_seconds=PATIENCE_SECONDS,
        replace_after_seconds=PATIENCE_SECONDS,
        read_timeout_seconds=PATIENCE_SECONDS,
    ) as client:
        writer = await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
        _say(ledger_id=writer.ledger_id)
        appended = 0
        while not end.is_set():
            began = time.monotonic()
            entry_id = await writer.append(payload_of(appended))
            ended = time.monotonic()
            assert entry_id == appended
            appended += 1
            _say(at=began, seconds=ended - began)
            await asyncio.sleep(max(0.0, began + PERIOD_SECONDS - ended))
        loop.remove_reader(sys.stdin.fileno())
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        found = [entry.payload async for entry in reader.read(0, appended - 1)]
        wrong = sum(payload_of(number) != payload for number, payload in enumerate(found))
        _say(appended=appended, found=len(found), wrong=wrong)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
