"""A client of the carrier by frames that sends what a test wants, on a plain socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bookie.ids import INSTANCE_ID_METADATA_KEY
from bookie.wire.carrier import CallCode
from bookie.wire.frames.format import (
    SCRATCH_BYTES,
    BookieHello,
    ClientHello,
    UnitBuffer,
    UnitKind,
    encode_client_hello,
    pack_size,
    parse_bookie_hello,
    parse_end,
)
from tests.unit.wire.fake_node import INSTANCE_ID

PAIRS = ((INSTANCE_ID_METADATA_KEY, INSTANCE_ID),)

SECONDS_MAX = 20.0
"""No answer takes so long."""


def frame(body: bytes) -> bytes:
    return pack_size(len(body)) + body


def hello(conversation: str) -> bytes:
    return encode_client_hello(ClientHello(conversation, PAIRS))


class RawPeer:
    """One connection; `units` are the received units that no test has taken."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.units: list[tuple[UnitKind, bytes]] = []
        self._buffer = UnitBuffer(memoryview(bytearray(SCRATCH_BYTES)))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def unit(self) -> tuple[UnitKind, bytes] | None:
        """Return the next unit; None after the bookie has closed the connection."""
        async with asyncio.timeout(SECONDS_MAX):
            while not self.units:
                space = self._buffer.space()
                try:
                    data = await self.reader.read(len(space))
                except ConnectionError:
                    return None
                if not data:
                    return None
                space[: len(data)] = data
                self.units = self._buffer.received(len(data))
                self._buffer.frame_bytes_max = 1 << 24
                while self._buffer.has_more:
                    self.units += self._buffer.received(0)
        return self.units.pop(0)

    async def hello(self) -> BookieHello:
        unit = await self.unit()
        assert unit is not None
        assert unit[0] is UnitKind.HELLO
        return parse_bookie_hello(unit[1])

    async def message(self) -> bytes:
        unit = await self.unit()
        assert unit is not None
        assert unit[0] is UnitKind.MESSAGE
        return unit[1]

    async def end(self) -> tuple[CallCode, str]:
        unit = await self.unit()
        assert unit is not None
        assert unit[0] is UnitKind.END
        return parse_end(unit[1])

    async def is_closed(self) -> bool:
        """Wait until the bookie has closed; False if it sent something before."""
        return await self.unit() is None


@asynccontextmanager
async def raw_peer(port: int, own_host: str = "127.0.0.1") -> AsyncIterator[RawPeer]:
    """Connect to a port of this machine, from an address of this machine."""
    local = own_host, 0
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=local)
    try:
        yield RawPeer(reader, writer)
    finally:
        writer.close()
