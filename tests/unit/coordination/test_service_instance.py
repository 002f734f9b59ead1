"""Service instances: what is read back is what was written, and nothing else is read."""

from __future__ import annotations

import pytest

from bookie.coordination.service_instance import (
    ServiceInstance,
    decode_service_instance,
    encode_service_instance,
)
from bookie.errors import BadRequestError, FormatError


def test_round_trip() -> None:
    instance = ServiceInstance("10.0.0.1", 3181, "grpc", {"zone": "a"})
    assert decode_service_instance(encode_service_instance(instance)) == instance


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_ports_out_of_range(port: int) -> None:
    with pytest.raises(BadRequestError):
        encode_service_instance(ServiceInstance("h", port))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"format":"service-instance","version":1}',
        b'{"format":"service-instance","version":1,"host":"h","port":0,"protocol":"","labels":{}}',
        b'{"format":"service-instance","version":1,"host":"h","port":1,"protocol":"","labels":[]}',
        b'{"format":"service-instance","version":2,"host":"h","port":1,"protocol":"","labels":{}}',
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_service_instance(data)
