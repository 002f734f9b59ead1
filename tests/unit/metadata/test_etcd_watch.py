"""By what a watch on etcd knows the history that it has followed so far."""

from __future__ import annotations

import asyncio

import pytest

from bookie._pb import etcd_pb2 as pb
from bookie.metadata.changes import Commit
from bookie.metadata.etcd_client import CompactedError, Endpoint, EtcdClient
from bookie.metadata.etcd_keys import Scope
from bookie.metadata.etcd_watch import EtcdWatch, Position
from bookie.metadata.security import MetadataSecurity

CLUSTER, TERM = 7, 2


def _response(revision: int, *, watch_id: int = 0, **keys: int) -> pb.WatchResponse:
    """Tells, at `revision`, of keys written at the revisions that are given for them."""
    header = pb.ResponseHeader(cluster_id=CLUSTER, revision=revision, raft_term=TERM)
    events = [
        pb.Event(
            type=pb.Event.PUT,
            kv=pb.KeyValue(key=b"/s/" + key.encode(), create_revision=1, mod_revision=at),
        )
        for key, at in keys.items()
    ]
    return pb.WatchResponse(header=header, watch_id=watch_id, events=events)


class _Stream:
    """A watch without a server, which is told responses; `begin` is a new connection."""

    def __init__(self) -> None:
        client = EtcdClient(
            ["h:1"], MetadataSecurity(), scope="/s", attempt_seconds=1, operation_seconds=1
        )
        self.commits: list[int | None] = []
        self.watch = EtcdWatch(client, Scope("/s"), asyncio.TaskGroup(), self._note, lambda _: None)
        self.watch._begin(Position(CLUSTER, 3, TERM))
        self._endpoint = Endpoint("h:1", None)

    def _note(self, commit: Commit) -> None:
        self.commits.append(commit.revision)

    def begin(self) -> None:
        self.watch._parts, self.watch._awaited = [], self.watch._last

    def take(self, response: pb.WatchResponse) -> None:
        self.watch._take(response, self._endpoint)


@pytest.fixture
async def stream() -> _Stream:
    found = _Stream()
    found.take(_response(5, a=5))
    found.begin()
    return found


async def test_what_was_delivered_last_is_recognised_and_not_delivered_again(
    stream: _Stream,
) -> None:
    stream.take(_response(6, a=5, b=6))
    assert stream.commits == [5, 6]


async def test_a_server_that_has_not_come_so_far_says_nothing_yet(stream: _Stream) -> None:
    stream.take(_response(4, watch_id=-1))
    stream.take(_response(5, a=5))
    stream.take(_response(6, b=6))
    assert stream.commits == [5, 6]


@pytest.mark.parametrize(
    "response",
    [
        _response(9, b=6),
        _response(9, b=5),
        _response(9, a=5, b=5),
        _response(9),
    ],
    ids=["later", "another key", "one key more", "progress"],
)
async def test_another_history_is_not_followed(stream: _Stream, response: pb.WatchResponse) -> None:
    with pytest.raises(CompactedError, match="another history since 5"):
        stream.take(response)
    assert stream.commits == [5]


async def test_an_answer_to_a_question_may_come_too_early(stream: _Stream) -> None:
    """Old servers answer before they have told what the stream must begin with."""
    stream.take(_response(9, watch_id=-1))
    stream.take(_response(9, watch_id=-1))
    stream.take(_response(9, a=5, b=9))
    assert stream.commits == [5, 9]


async def test_a_later_answer_to_a_question_is_believed(stream: _Stream) -> None:
    stream.take(_response(9, watch_id=-1))
    stream.watch._answered_at -= 2 * stream.watch._client.attempt_seconds
    with pytest.raises(CompactedError, match="another history since 5"):
        stream.take(_response(9, watch_id=-1))
