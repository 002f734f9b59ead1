"""What the numbers of sequential records are above, over all sequences of a store in etcd.

Every sequence has a counter of its own. Beside them stands one floor for all sequences, those that
do not exist yet included; each write of a sequential record compares it (`etcd_transactions`). It
is raised when records are copied from another store, whose numbers may be greater than any here.
"""

from __future__ import annotations

from bookie._pb import etcd_pb2 as pb
from bookie.metadata import etcd_messages as messages
from bookie.metadata.etcd_client import RANGE, TXN, EtcdClient
from bookie.metadata.etcd_keys import Scope
from bookie.metadata.etcd_listing import KEYS_PER_PAGE_MAX

_FLOOR_DIGITS = 20
"""All floors have as many, so that etcd, which compares bytes, compares the numbers."""


async def last_number(client: EtcdClient, scope: Scope) -> int:
    """The greatest number that any sequence has reached, or the floor if that is greater."""
    response = await client.read(RANGE, pb.RangeRequest(key=scope.number_floor()))
    last = max((int(kv.value) for kv in response.kvs), default=0)
    start, end = scope.sequences()
    while True:
        page = pb.RangeRequest(key=start, range_end=end, limit=KEYS_PER_PAGE_MAX)
        response = await client.read(RANGE, page)
        last = max(last, *(int(kv.value) for kv in response.kvs), 0)
        if not response.more:
            return last
        start = response.kvs[-1].key + b"\0"


async def raise_floor(client: EtcdClient, scope: Scope, last: int) -> None:
    """Let all later numbers be above `last`; a floor that is higher stays. May be done again."""
    key, value = scope.number_floor(), b"%0*d" % (_FLOOR_DIGITS, last)
    write = messages.put(key, value, 0)
    higher = messages.nested([messages.less(key, value)], [write])
    request = pb.TxnRequest(compare=[messages.absent(key)], success=[write], failure=[higher])
    await client.read(TXN, request)
