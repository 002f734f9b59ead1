"""The value of the leased record in which a running bookie describes itself.

The record is canonical JSON (:mod:`bookie.metadata.json_record`), format ``bookie-registration``,
version 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from bookie.addresses import join_address
from bookie.errors import BadRequestError, FormatError
from bookie.ids import is_valid_bookie_id
from bookie.metadata import json_record

_FORMAT = "bookie-registration"
_VERSION = 1
_PORT_MAX = 65535


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address of a bookie, with its service and its protocol."""

    name: str
    """Name of the service: "bookie" for entries by gRPC, "frames" for entries by frames, "http" for
    metrics and health."""
    host: str
    port: int
    protocol: str
    """Protocol of the service: "grpc", "grpcs", "frames", "frames+tls", "http", …"""

    @property
    def address(self) -> str:
        """The address as ``HOST:PORT``."""
        return join_address(self.host, self.port)


@dataclass(frozen=True, slots=True)
class Registration:
    """A bookie's description of itself, as it was when the bookie last updated the record."""

    bookie_id: str
    endpoints: tuple[Endpoint, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels for placement: rack, zone, region, …"""
    total_bytes: int = 0
    """The size of the ledger device in bytes."""
    free_bytes: int = 0
    load: float = 0.0
    """The bookie's load: 0 if it is idle, 1 if it is at its limit."""
    read_only: bool = False
    version: str = ""
    incarnation: str = ""
    """A random id, renewed when the bookie may have lost acknowledged data."""
    store_doubt: str = ""
    """The reason to suspect that the metadata store is older than the bookie's state, or empty."""

    def endpoint(self, name: str) -> Endpoint | None:
        for endpoint in self.endpoints:
            if endpoint.name == name:
                return endpoint
        return None


def encode_registration(registration: Registration) -> bytes:
    """Encode a registration as the record's bytes.

    Raises:
        BadRequestError: the load is NaN or infinite.
    """
    fields = asdict(registration)
    fields["program_version"] = fields.pop("version")
    for name in ("incarnation", "store_doubt"):
        if not fields[name]:
            del fields[name]
    try:
        return json_record.encode(_FORMAT, _VERSION, fields)
    except ValueError as error:
        raise BadRequestError(f"the registration of {registration.bookie_id}: {error}") from error


def decode_registration(data: bytes) -> Registration:
    """Decode the registration in `data`.

    Raises:
        FormatError: the data is not a registration, is damaged, or was written by a newer version.
    """
    fields = json_record.decode(_FORMAT, _VERSION, data)
    bookie_id = fields.text("bookie_id")
    if not is_valid_bookie_id(bookie_id):
        raise FormatError(f"{_FORMAT}: {bookie_id!r} cannot be a bookie's id")
    labels = fields.inner("labels")
    return Registration(
        bookie_id=bookie_id,
        endpoints=tuple(
            Endpoint(
                name=endpoint.text("name"),
                host=endpoint.text("host"),
                port=endpoint.integer("port", minimum=0, maximum=_PORT_MAX),
                protocol=endpoint.text("protocol"),
            )
            for endpoint in fields.objects("endpoints")
        ),
        labels={name: labels.text(name) for name in labels.names()},
        total_bytes=fields.integer("total_bytes", minimum=0),
        free_bytes=fields.integer("free_bytes", minimum=0),
        load=fields.number("load"),
        read_only=fields.boolean("read_only"),
        version=fields.text("program_version"),
        incarnation=fields.text("incarnation") if "incarnation" in fields.names() else "",
        store_doubt=fields.text("store_doubt") if "store_doubt" in fields.names() else "",
    )
