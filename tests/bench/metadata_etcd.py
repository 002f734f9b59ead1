"""The etcd side of `bench_metadata`: the store, and the bare calls that it is compared with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from grpc import aio

from bookie._pb import etcd_pb2 as pb
from bookie.metadata.etcd.backend import EtcdStore
from tests.bench.metadata_embedded import Ours
from tests.servers.etcd import EtcdCluster, EtcdServer

if TYPE_CHECKING:
    from tests.bench.bench_metadata import Contender


class Bare:
    """Calls of gRPC, as short as they can be."""

    def __init__(self, channel: Any) -> None:
        self._range = channel.unary_unary(
            "/etcdserverpb.KV/Range",
            request_serializer=pb.RangeRequest.SerializeToString,
            response_deserializer=pb.RangeResponse.FromString,
        )
        self._txn = channel.unary_unary(
            "/etcdserverpb.KV/Txn",
            request_serializer=pb.TxnRequest.SerializeToString,
            response_deserializer=pb.TxnResponse.FromString,
        )

    async def get(self, key: str) -> object:
        response = await self._range(pb.RangeRequest(key=b"/bare" + key.encode()))
        return response.kvs[0]

    async def create(self, key: str, value: bytes) -> int:
        return await self._put(key, value, 0)

    async def write(self, key: str, value: bytes, version: int) -> int:
        return await self._put(key, value, version)

    async def delete(self, key: str, version: int) -> None:
        name = b"/bare" + key.encode()
        request = pb.TxnRequest(
            compare=[pb.Compare(target=pb.Compare.MOD, key=name, mod_revision=version)],
            success=[pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=name))],
        )
        assert (await self._txn(request)).succeeded

    async def _put(self, key: str, value: bytes, version: int) -> int:
        name = b"/bare" + key.encode()
        request = pb.TxnRequest(
            compare=[pb.Compare(target=pb.Compare.MOD, key=name, mod_revision=version)],
            success=[pb.RequestOp(request_put=pb.PutRequest(key=name, value=value))],
        )
        response = await self._txn(request)
        assert response.succeeded
        return int(response.header.revision)


@asynccontextmanager
async def contest(members: int) -> AsyncIterator[dict[str, Contender]]:
    """Both sides on one server, or on the same member of three."""
    async with AsyncExitStack() as stack:
        servers: EtcdServer | EtcdCluster
        if members == 1:
            servers = stack.enter_context(EtcdServer().running())
        else:
            servers = await stack.enter_async_context(EtcdCluster())
        endpoint = servers.endpoints[0]
        store = await stack.enter_async_context(EtcdStore([endpoint], "/ours"))
        channel = await stack.enter_async_context(aio.insecure_channel(endpoint))
        yield {"ours": Ours(store), "bare": Bare(channel)}
