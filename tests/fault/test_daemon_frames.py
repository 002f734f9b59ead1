"""A daemon that serves frames beside gRPC: who finds it, and how it stops."""

from __future__ import annotations

import asyncio
import signal

from bookie import connect
from bookie.cluster.directory import BookieDirectory
from bookie.cluster.registration_record import Endpoint
from bookie.errors import BookieError
from bookie.metadata.connect import open_store
from tests.fault.daemon_process import Home, serving
from tests.servers.ports import claimed_ports


async def test_frames_are_found_by_the_registration_and_lose_nothing_in_a_stop(home: Home) -> None:
    """SIGTERM comes while fifty callers append; all that was acknowledged is there afterwards."""
    (port,) = claimed_ports(1)
    home.sections["listen"]["frames_port"] = port
    config = home.write()
    acknowledged: dict[int, bytes] = {}
    async with serving(config) as daemon:
        await daemon.until("registered")
        async with open_store(home.metadata_uri) as store, BookieDirectory(store) as directory:
            found = directory.resolve("b1", transport="auto")
            assert found == Endpoint("frames", "127.0.0.1", port, "frames")
            assert directory.resolve("b1").name == "bookie"
        async with connect(home.metadata_uri, transport="frames", add_timeout_seconds=1) as bk:
            writer = await bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)

            async def append(number: int) -> None:
                for count in range(1000):
                    payload = b"%d %d" % (number, count)
                    try:
                        acknowledged[await writer.append(payload)] = payload
                    except BookieError:
                        return

            async with asyncio.TaskGroup() as tasks:
                for number in range(50):
                    tasks.create_task(append(number))
                while len(acknowledged) < 500:  # noqa: ASYNC110  (the appends go on)
                    await asyncio.sleep(0.001)
                daemon.process.send_signal(signal.SIGTERM)
                assert await daemon.end() == 0
            ledger_id = writer.ledger_id
    assert len(acknowledged) >= 500
    # By default it is any free port, which the registration names.
    del home.sections["listen"]["frames_port"]
    config = home.write()
    async with serving(config) as daemon:
        await daemon.until("registered")
        async with connect(home.metadata_uri, transport="frames") as bk:
            reader = await bk.open_ledger(ledger_id, recover=True)
            stored = {entry.entry_id: entry.payload async for entry in reader.read()}
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.end() == 0
    assert {one: stored.get(one) for one in acknowledged} == acknowledged
