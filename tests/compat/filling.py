"""Ledgers for a specimen, written with the client of the tree that the specimen is made from.

``python filling.py URI`` writes one set of ledgers and prints what is in them. It uses nothing but
the public surface, so that every release can run it.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import zlib

from bookie import connect

KIB_ENTRIES, SMALL_ENTRIES = 24, 160


async def fill(uri: str) -> list[dict[str, object]]:
    """Write one ledger of each kind; what a reader has to find."""
    ledgers: list[dict[str, object]] = []
    async with connect(uri) as bk:
        for state, password, size, count in (
            ("CLOSED", "", 1024, KIB_ENTRIES),
            ("CLOSED", "secret", 100, SMALL_ENTRIES),
            ("RECOVERED", "secret", 1024, KIB_ENTRIES),
            ("OPEN", "", 100, SMALL_ENTRIES),
            ("DELETED", "", 100, SMALL_ENTRIES),
        ):
            key = password.encode()
            writer = await bk.create_ledger(
                ensemble_size=3,
                write_quorum_size=3,
                ack_quorum_size=2,
                password=key,
            )
            ledger_id = writer.ledger_id
            generator = random.Random(ledger_id)
            payloads = [generator.randbytes(size // 2).hex().encode() for _ in range(count)]
            for at in range(0, count, 8):
                await writer.append_many(payloads[at : at + 8])
            if state in ("CLOSED", "DELETED"):
                await writer.close()
            if state == "RECOVERED":
                await bk.open_ledger(ledger_id, password=key, recover=True)
            if state == "DELETED":
                await bk.delete_ledger(ledger_id)
            ledgers.append(
                {
                    "ledger_id": ledger_id,
                    "state": state,
                    "password": password,
                    "entry_size_bytes": size,
                    "crc32": [zlib.crc32(payload) for payload in payloads],
                }
            )
    return ledgers


print(json.dumps(asyncio.run(fill(sys.argv[1]))))
