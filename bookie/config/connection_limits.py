"""The part of ``[limits]`` that bounds the connections of clients."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from bookie.config.quantities import Size
from bookie.config.section import DYNAMIC, Section


class ConnectionLimits(Section):
    """Limits on a bookie's client connections, and on the bytes of their incomplete messages."""

    connections_max: int = Field(
        default=8192,
        ge=16,
        le=1_000_000,
        description="Connections of clients at a time; a client takes about five, or two by"
        " gRPC alone. Fewer are allowed if the limit of open files is low.",
    )
    connections_per_address_max: int = Field(
        default=2048,
        ge=4,
        description="Connections from one address; beyond it the newest are ended. All clients"
        " behind one NAT, proxy or container host share an address: count seven for each. Unless it"
        " is set, an address has at most a quarter of all connections.",
        json_schema_extra=DYNAMIC,
    )
    connections_reserved: int = Field(
        default=64,
        ge=0,
        description="The number of connections, out of connections_max, that only this machine and"
        " registered bookies may use.",
    )
    unfinished_bytes_max: Size = Field(
        default=256 * 1024 * 1024,
        ge=32 * 1024 * 1024,
        description="Bytes that arrived of messages which are incomplete or not yet read; beyond it"
        " the largest connections are ended, and beyond a half of it those with more than 16 MiB.",
        json_schema_extra=DYNAMIC,
    )

    @model_validator(mode="after")
    def _connection_relations(self) -> Self:
        if self.connections_reserved >= self.connections_max:
            raise ValueError("connections_reserved must be less than connections_max")
        return self
