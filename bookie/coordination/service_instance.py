"""The record of a service's instance, which contains the address of the instance.

The record is canonical JSON (:mod:`bookie.metadata.json_record`), format ``service-instance``,
version 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from bookie.errors import BadRequestError
from bookie.metadata import json_record

_FORMAT = "service-instance"
_VERSION = 1
_PORT_MAX = 65535


@dataclass(frozen=True, slots=True)
class ServiceInstance:
    """The address, protocol and labels of one instance of a service."""

    host: str
    port: int
    protocol: str = ""
    """The protocol of the service, such as "grpc" or "https"."""
    labels: Mapping[str, str] = field(default_factory=dict)


def encode_service_instance(instance: ServiceInstance) -> bytes:
    """Encode an instance as the bytes of its record.

    Raises:
        BadRequestError: the port is out of range.
    """
    if not 1 <= instance.port <= _PORT_MAX:
        raise BadRequestError(f"{instance.port} is not a port")
    return json_record.encode(_FORMAT, _VERSION, asdict(instance))


def decode_service_instance(data: bytes) -> ServiceInstance:
    """Decode the instance in `data`.

    Raises:
        FormatError: the record is not an instance, or a newer version of bookie wrote it.
    """
    fields = json_record.decode(_FORMAT, _VERSION, data)
    labels = fields.inner("labels")
    return ServiceInstance(
        fields.text("host"),
        fields.integer("port", minimum=1, maximum=_PORT_MAX),
        fields.text("protocol"),
        {name: labels.text(name) for name in labels.names()},
    )
