"""Small durable values that parts of a bookie need again after a restart.

Each value is stored under a name, with a CRC32C of name and value. The name begins with the prefix
of the part that uses the value. The values are in the index's ``meta`` table, so a rebuilt index
has no values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bookie.entry.checksum import crc32c
from bookie.node.engine.integrity import Integrity

_CRC_BYTES = 4


class DurableValues:
    """Reads and writes the durable values of one bookie part; made by `Engine.durable_values`."""

    def __init__(self, integrity: Integrity, prefix: bytes) -> None:
        self._integrity = integrity
        self._prefix = prefix

    async def read(self) -> dict[bytes, bytes | None]:
        """Return all values by name; a damaged value is None."""
        found = await self._integrity.values(self._prefix)
        return {name: self._value(name, data) for name, data in found}

    async def write(self, values: Mapping[bytes, bytes]) -> None:
        """Set some values; durable when this returns.

        Raises:
            DiskFullError: there is no room for the change.
            StorageFailedError: the index failed; the process must end.
        """
        await self._integrity.put(
            {self._prefix + name: self._crc(name, value) + value for name, value in values.items()}
        )

    async def remove(self, names: Sequence[bytes]) -> None:
        """Remove the values with these names; durable when this returns; raises like `write`."""
        await self._integrity.forget([self._prefix + name for name in names])

    def _value(self, name: bytes, data: bytes) -> bytes | None:
        value = data[_CRC_BYTES:]
        return value if data[:_CRC_BYTES] == self._crc(name, value) else None

    def _crc(self, name: bytes, value: bytes) -> bytes:
        return crc32c(value, crc32c(self._prefix + name)).to_bytes(_CRC_BYTES, "little")
