"""A file system fails in the middle of syncs: what a sync reported as durable is there afterwards.

ext4 turns read-only while new blocks are on their way, drops them, and reports success. Without a
check behind the sync, the last block is lost in about one of seven of these rounds. The blocks of a
file are new, or replace space that was allocated, or zeros that were synced.
"""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

from bookie.env.disk import File, PosixDisk
from bookie.env.kv import LmdbStore, open_lmdb
from bookie.errors import MetadataUnavailableError
from bookie.metadata.connect import open_store
from tests.system.devices import MIB, volume

ROUNDS = 60
BLOCK = b"x" * 4096
FILE_BYTES = 8 * MIB
MAP_BYTES = 16 * MIB
COMMITS_MAX = 5000


def test_a_store_keeps_its_commits_and_is_not_damaged(ram: Path) -> None:
    """Commits of a few pages. Without the zeros that a store writes ahead, one file in 20 was."""
    choose = random.Random(1)
    with ThreadPoolExecutor(1) as writer:
        for number in range(ROUNDS):
            with volume(ram, f"disk-{number}", 32 * MIB, options="errors=remount-ro") as disk:
                store = open_lmdb(str(disk.path), MAP_BYTES, ("table",))
                half_way = threading.Event()
                writing = writer.submit(
                    _commit_until_refused, store, choose.randrange(10, 60), half_way
                )
                assert half_way.wait(60), "the device is slow or broken"
                disk.turn_read_only()
                committed = writing.result()
                store.close()
                disk.restore()
                keys = [b"%08d" % key for key in range(committed)]
                with (
                    closing(open_lmdb(str(disk.path), MAP_BYTES, ("table",))) as found,
                    found.read() as transaction,
                ):
                    values = transaction.get_many("table", keys)
                assert values == keys, number


async def test_metadata_on_one_machine_are_kept(ram: Path) -> None:
    """They are the only copy: nothing could make a damaged file anew."""
    choose = random.Random(2)
    for number in range(ROUNDS):
        with volume(ram, f"disk-{number}", 32 * MIB, options="errors=remount-ro") as disk:
            uri = f"local://{disk.path}/metadata"
            half, written = choose.randrange(10, 60), 0
            async with open_store(uri) as store, asyncio.TaskGroup() as tasks:
                with suppress(MetadataUnavailableError):
                    for written in range(COMMITS_MAX):
                        await store.put(f"/{written:08d}", b"x" * 1500)
                        if written == half:
                            tasks.create_task(asyncio.to_thread(disk.turn_read_only))
            disk.restore()
            async with open_store(uri) as store:
                assert len(await store.get_children("/")) >= written, number


def _commit_until_refused(store: LmdbStore, half: int, half_way: threading.Event) -> int:
    """Commit pair by pair; how many commits were reported. `half_way` is set after `half`."""
    for committed in range(COMMITS_MAX):
        if committed == half:
            half_way.set()
        key = b"%08d" % committed
        try:
            with store.write() as transaction:
                transaction.put("table", key, key)
                transaction.put("table", b"more" + key, bytes(1500))
        except OSError:
            return committed
    return COMMITS_MAX


def test_what_a_sync_reported_is_there(ram: Path) -> None:
    choose = random.Random(0)
    with ThreadPoolExecutor(1) as writer:
        for number in range(ROUNDS):
            with volume(ram, f"disk-{number}", 32 * MIB, options="errors=remount-ro") as disk:
                path = str(disk.path / "journal")
                in_place = number % 3 == 2
                file = PosixDisk().create(path, 0 if number % 3 == 0 else FILE_BYTES)
                if in_place:
                    file.pwritev([bytes(FILE_BYTES)], 0)
                file.fdatasync()
                half_way = threading.Event()
                writing = writer.submit(
                    _write_until_refused,
                    file,
                    choose.randrange(20, 100) * len(BLOCK),
                    half_way,
                    in_place=in_place,
                )
                assert half_way.wait(60), "the device is slow or broken"
                disk.turn_read_only()
                synced = writing.result()
                file.close()
                disk.restore()
                assert Path(path).read_bytes()[:synced] == BLOCK * (synced // len(BLOCK)), number


def _write_until_refused(
    file: File, half: int, half_way: threading.Event, *, in_place: bool
) -> int:
    """Write and sync block by block; how many bytes were reported as durable.

    `half_way` is set once `half` bytes are.
    """
    synced = 0
    with suppress(OSError):
        while synced < FILE_BYTES:
            file.pwritev([BLOCK], synced)
            file.fdatasync(in_place=in_place)
            synced += len(BLOCK)
            if synced == half:
                half_way.set()
    return synced
