"""The parts of the ZooKeeper store that need no server, and the parts of kazoo that it rests on."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionLoss
from kazoo.protocol import connection
from kazoo.protocol.states import ZnodeStat

from bookie.errors import BadRequestError, InvalidKeyError, UnsupportedError
from bookie.metadata.model import (
    KEY_SIZE_BYTES_MAX,
    NOT_EXISTS,
    VALUE_SIZE_BYTES_MAX,
    Acl,
    ChangeKind,
    Check,
    Delete,
    Put,
)
from bookie.metadata.zookeeper import sasl
from bookie.metadata.zookeeper.cached import KnownRecords
from bookie.metadata.zookeeper.changes import CHANGED, CREATED, DELETED, ChangeReader
from bookie.metadata.zookeeper.client import LostError, Pending, _meaning_of
from bookie.metadata.zookeeper.kazoo_parts import NodeEvent, SaslStep
from bookie.metadata.zookeeper.nodes import NodeReader, numbers_used
from bookie.metadata.zookeeper.requests import (
    CheckVersion,
    CreateNode,
    DeleteNode,
    Exists,
    NodeError,
    NodeOperation,
    SetData,
)
from bookie.metadata.zookeeper.sasl import DigestMd5, SaslRefusedError
from bookie.metadata.zookeeper.session import ZooKeeperLink
from bookie.metadata.zookeeper.tree import (
    KEPT,
    PARENT,
    REMOVALS,
    Node,
    Planner,
    Scope,
    View,
    birth_of,
    data_version_of,
    from_node_acl,
    overtaken_stat,
    require_representable,
    to_node_acl,
    version_of,
)

SCOPE = Scope("/s")
SESSION = 7
MARK = SetData("/s", PARENT, -1)
GUARD_VERSION = 5
REMOVAL = SetData(REMOVALS, b"", GUARD_VERSION)


def stat(czxid: int = 5, version: int = 0, owner: int = 0) -> ZnodeStat:
    return ZnodeStat(czxid, czxid + version, 1, 2, version, 0, 0, owner, 1, 0, 0)


# ---- kazoo


def test_only_a_refusal_is_an_answer_to_a_proof() -> None:
    """A connection that breaks before the answer says nothing about the password."""
    step = SaslStep(b"")
    assert isinstance(_meaning_of(ConnectionLoss(), step), LostError)
    assert isinstance(_meaning_of(AuthFailedError(), step), NodeError)
    assert isinstance(_meaning_of(AuthFailedError(), Exists("/s")), LostError)


def test_the_inner_parts_of_kazoo_are_where_they_were() -> None:
    """The parts that `kazoo_parts` overrides and uses, by name and arguments."""
    methods = {
        connection.ConnectionHandler: {
            "_connect": ["self", "host", "hostip", "port"],
            "_expand_client_hosts": ["self"],
            "_read_header": ["self", "timeout"],
            "_read_response": ["self", "header", "buffer", "offset"],
            "_read_watch_event": ["self", "buffer", "offset"],
        },
        KazooClient: {"_call": ["self", "request", "async_object"], "_reset": ["self"]},
    }
    for kind, named in methods.items():
        for name, arguments in named.items():
            assert list(inspect.signature(getattr(kind, name)).parameters) == arguments, name
    client = KazooClient()
    for name in ("_connection", "_conn_retry", "_pending", "_queue", "last_zxid"):
        assert hasattr(client, name), name
    connect = inspect.getsource(connection.ConnectionHandler._connect)
    assert "read_timeout = negotiated_session_timeout * 2.0 / 3.0" in connect
    assert "client.last_zxid," in connect
    assert "self._queue.append((request, async_object))" in inspect.getsource(KazooClient._call)
    reading = inspect.getsource(connection.ConnectionHandler._read_socket)
    assert "self._read_header(" in reading
    assert "self._read_watch_event(" in reading
    assert "self._read_response(" in reading
    answering = inspect.getsource(connection.ConnectionHandler._read_response)
    assert "request, async_object, xid = client._pending.popleft()" in answering


# ---- SASL


def test_digest_md5_answers_as_its_standard_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of RFC 2831, which is about another service."""
    monkeypatch.setattr(sasl, "_DIGEST_URI", "imap/elwood.innosoft.com")
    exchange = DigestMd5("chris", "secret", "OA6MHXh6VqTrRk")
    answer = exchange.respond(
        b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",'
        b"algorithm=md5-sess,charset=utf-8"
    )
    assert b"response=d388dad90d4bbd760a152321f2143af7" in answer
    exchange.check(b"rspauth=ea40f60335c427b5527b84dbabcdfffd")
    with pytest.raises(SaslRefusedError):
        exchange.check(b"rspauth=ea40f60335c427b5527b84dbabcdfffe")


@pytest.mark.parametrize("challenge", [b"", b"realm=x", b"\xff"])
def test_digest_md5_refuses_what_is_no_challenge(challenge: bytes) -> None:
    with pytest.raises(SaslRefusedError):
        DigestMd5("user", "password", "nonce").respond(challenge)


# ---- the tree


def test_a_version_tells_the_node_and_its_own_version() -> None:
    version = version_of(stat(czxid=2**40, version=9))
    assert (birth_of(version), data_version_of(version)) == (2**40, 9)
    assert version_of(stat(6)) > version_of(stat(5, 1000))
    assert data_version_of(2**31 + 5) == 2**31 - 1


def test_a_write_that_was_overtaken_has_a_version_from_before_the_present_one() -> None:
    before = version_of(stat(5, 2))
    written = overtaken_stat(Put("/a", b"", before), SetData("/s/a", b"", 2), 9)
    assert (written.version, written.revision) == (version_of(stat(5, 3)), 9)
    created = overtaken_stat(Put("/a", b""), CreateNode("/s/a", b""), 9)
    assert (birth_of(created.version), data_version_of(created.version)) == (9, 0)
    assert overtaken_stat(Put("/a", b""), SetData("/s/a", b"", -1), 9).version == 0


@pytest.mark.parametrize("key", ["/a\n", "/\x7f", "/\ue000", "/\U0001f600", "/\x85"])
def test_keys_that_zookeeper_refuses_are_refused(key: str) -> None:
    with pytest.raises(InvalidKeyError, match="ZooKeeper refuses"):
        require_representable(Delete(key))


@pytest.mark.parametrize("value", [PARENT, KEPT])
def test_what_tells_a_parent_is_no_value(value: bytes) -> None:
    with pytest.raises(InvalidKeyError):
        require_representable(Put("/a", value))


def plan(operations: list[Put | Delete | Check], view: View) -> list[NodeOperation]:
    return Planner(SCOPE, operations, view, SESSION).plan().operations


def record(version: int = 0, owner: int = 0) -> Node:
    return Node(5, version, owner, is_record=True, children=0)


def parent(version: int = 0) -> Node:
    return Node(5, version, 0, is_record=False, children=0)


def test_the_largest_put_fits_one_request() -> None:
    scope, key = Scope("/" + "s" * (KEY_SIZE_BYTES_MAX - 1)), "/a" * (KEY_SIZE_BYTES_MAX // 2)
    everybody = frozenset({"read", "write", "create", "delete", "admin"})
    put = Put(key, bytes(VALUE_SIZE_BYTES_MAX), acl=(Acl("digest", "u" * 200_000, everybody),))
    assert Planner(scope, [put], View({key: None}), SESSION).plan().creates
    too_large = (Acl("digest", "u" * 500_000, everybody),)
    with pytest.raises(InvalidKeyError, match="in one request"):
        Planner(scope, [replace(put, acl=too_large)], View({key: None}), SESSION).plan()


def test_a_record_of_the_transaction_is_made_before_those_below_it() -> None:
    view = View({"/a/b": None, "/a": None})
    planned = Planner(SCOPE, [Put("/a/b", b"2"), Put("/a", b"1")], view, SESSION).plan()
    assert planned.operations == [CreateNode("/s/a", b"1"), CreateNode("/s/a/b", b"2")]
    assert planned.results == [1, 0]


def test_a_parent_gets_a_record_only_if_it_is_still_a_parent() -> None:
    view = View({"/a": parent(2)}, guard=GUARD_VERSION)
    assert plan([Put("/a", b"x", NOT_EXISTS)], view) == [
        MARK,
        REMOVAL,
        SetData("/s/a", PARENT, 2),
        MARK,
        SetData("/s/a", b"x", -1),
    ]
    assert plan([Put("/a", b"x", ephemeral=True)], view) == [
        MARK,
        REMOVAL,
        DeleteNode("/s/a", 2),
        MARK,
        CreateNode("/s/a", b"x", ephemeral=True),
    ]


def test_a_parent_is_deleted_so_that_removals_and_watches_know() -> None:
    nodes: dict[str, Node | None] = {
        "/a": parent(2)._replace(is_record=True),
        "/b": parent(1),
        "/c": parent(3),
    }
    view = View(nodes, guard=GUARD_VERSION)
    assert plan([Delete("/a"), Delete("/b"), Delete("/c")], view) == [
        DeleteNode("/s/a", 2),
        MARK,
        REMOVAL,
        DeleteNode("/s/b", 1),
        MARK,
        MARK,
        DeleteNode("/s/c", 3),
        MARK,
    ]


def test_a_take_over_is_a_deletion_and_a_creation_at_once() -> None:
    view = View({"/e": record(2, owner=SESSION + 1)})
    put = Put("/e", b"x", record(2).version, ephemeral=True)
    assert plan([put], view) == [
        MARK,
        DeleteNode("/s/e", 2),
        CreateNode("/s/e", b"", ephemeral=True),
        SetData("/s/e", b"x", -1),
        MARK,
    ]
    view = View({"/e": record(1, owner=SESSION + 1)})
    writes = plan([Put("/e", b"x", record(1).version, ephemeral=True)], view)
    assert sum(isinstance(write, SetData) and write != MARK for write in writes) == 2


def test_absence_is_checked_by_a_creation_that_is_taken_back() -> None:
    assert plan([Check("/a", NOT_EXISTS)], View({"/a": None})) == [
        MARK,
        CreateNode("/s/a", PARENT),
        DeleteNode("/s/a", -1),
        MARK,
    ]
    assert plan([Check("/a", NOT_EXISTS)], View({"/a": parent(3)}, guard=GUARD_VERSION)) == [
        CheckVersion(REMOVALS, GUARD_VERSION),
        CheckVersion("/s/a", 3),
    ]
    view = View({"/a": None, "/a/b": None, "/a/b/c": None})
    assert plan([Put("/a", b""), Check("/a/b/c", NOT_EXISTS)], view) == [
        CreateNode("/s/a", b""),
        MARK,
        CreateNode("/s/a/b", PARENT),
        CreateNode("/s/a/b/c", PARENT),
        DeleteNode("/s/a/b/c", -1),
        DeleteNode("/s/a/b", -1),
        MARK,
    ]


def test_persistent_sequential_records_need_a_parent_that_stays() -> None:
    puts = [
        Put("/l/x/n-", b"", sequential=True),
        Put("/l/y/n-", b"", ephemeral=True, sequential=True),
        Put("/top-", b"", sequential=True),
    ]
    planned = Planner(SCOPE, puts, View(), SESSION).plan()
    assert planned.operations == [
        CreateNode("/s/top-", b"", sequential=True),
        CreateNode("/s/l/x/n-", b"", sequential=True),
        CreateNode("/s/l/y/n-", b"", ephemeral=True, sequential=True),
    ]
    assert planned.numbered_below == {"/l/x"}


def test_a_known_record_needs_no_read_and_an_earlier_life_does() -> None:
    known = KnownRecords()
    known.learn("/a", stat(5, 3))
    now, before = version_of(stat(5, 2)), version_of(stat(4, 3))
    for operation in (Put("/a", b"", now), Delete("/a", now), Check("/a", now)):
        view = known.view([operation], SESSION)
        assert view is not None
        assert view.nodes["/a"] == record(2)
    for operation in (Put("/a", b"", before), Delete("/a", before), Check("/a", before)):
        assert known.view([operation], SESSION) is None
    known.forget("/a")
    assert known.view([Delete("/a")], SESSION) is None
    assert known.view([Put("/a", b"")], SESSION) == View()
    assert known.view([Put("/l/n-", b"", sequential=True)], SESSION) == View()


def test_access_control_on_what_has_children_is_refused() -> None:
    acl = (Acl("world", "anyone", frozenset({"read"})),)
    with pytest.raises(UnsupportedError, match="/p"):
        plan([Put("/p", b"x", acl=acl)], View({"/p": parent()._replace(children=1)}))


@pytest.mark.parametrize(("made", "now"), [(0, 0), (7, 3), (2**30 + 5, 4), (2**31 - 1, 1)])
def test_the_next_number_is_told_by_what_the_server_counts(made: int, now: int) -> None:
    cversion = (2 * made - now + 2**31) % 2**32 - 2**31  # as Java overflows
    node = stat()._replace(cversion=cversion, numChildren=now)
    assert numbers_used(node) == made


class _CountingLink:
    """Answers reads of a scope whose /q has had almost all children that it can have."""

    connection = losses = session = 0

    async def usable(self, deadline: float) -> int:
        return 0

    @asynccontextmanager
    async def place(self, deadline: float) -> AsyncIterator[None]:
        yield

    def send(self, request: Exists, *_: object) -> Pending:
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(stat()._replace(cversion=-(2**21), dataLength=5))
        return Pending(request, answer, 0.0)


async def test_numbers_that_would_turn_negative_are_not_asked_for() -> None:
    nodes = NodeReader(cast("ZooKeeperLink", _CountingLink()), SCOPE)
    with pytest.raises(InvalidKeyError, match="used up"):
        await nodes.view([Put("/q/n-", b"", sequential=True)], 0.0)


def test_an_answer_that_an_event_has_overtaken_is_not_learned() -> None:
    known = KnownRecords()
    known.note_deletion("/a", 9)
    known.note_quiet()
    known.learn("/a", stat(8))
    assert known.view([Delete("/a")], SESSION) is None
    known.learn("/a", stat(9))  # a take-over deletes and creates at once
    assert known.view([Delete("/a")], SESSION) is not None


def test_a_known_record_of_another_session_is_read_before_it_is_taken_over() -> None:
    known = KnownRecords()
    known.learn("/a", stat(5, 3, owner=SESSION + 1))
    version = version_of(stat(5, 3))
    take_over = [Put("/a", b"", version, ephemeral=True)]
    assert known.view(take_over, SESSION) is None
    assert known.view(take_over, SESSION + 1) is not None
    assert known.view([Put("/a", b"", version)], SESSION) is not None


def test_what_is_known_is_bounded() -> None:
    known = KnownRecords()
    known.SIZE_MAX = 3
    for number in range(5):
        known.learn(f"/{number}", stat())
    assert [number for number in range(5) if known.view([Delete(f"/{number}")], SESSION)] == [
        2,
        3,
        4,
    ]


def test_access_control_goes_to_zookeeper_and_back() -> None:
    acl = [
        Acl("world", "anyone", frozenset({"read"})),
        Acl("sasl", "ann", frozenset({"read", "write", "create", "delete", "admin"})),
    ]
    assert from_node_acl(to_node_acl(acl)) == acl
    with pytest.raises(BadRequestError):
        to_node_acl([])


# ---- events


def read(*events: tuple[int, str, int]) -> list[tuple[ChangeKind, str, int | None]]:
    reader = ChangeReader(SCOPE)
    found = [reader.read(NodeEvent(*event)) for event in events]
    return [(event.kind, event.key, event.revision) for event in found if event is not None]


def test_events_about_virtual_parents_are_left_out() -> None:
    assert read(
        (CHANGED, "/s", 1),
        (CREATED, "/s/a", 1),
        (CHANGED, "/s", 1),
        (CREATED, "/s/a/b", 1),
        (DELETED, "/s/a/b", 2),
        (CHANGED, "/s", 3),
        (DELETED, "/s/a", 3),
        (CHANGED, "/s", 3),
    ) == [(ChangeKind.CREATED, "/a/b", 1), (ChangeKind.DELETED, "/a/b", 2)]


def test_a_take_over_is_one_modification_and_a_conversion_a_creation() -> None:
    assert read(
        (CHANGED, "/s", 4),
        (DELETED, "/s/e", 4),
        (CREATED, "/s/e", 4),
        (CHANGED, "/s", 4),
        (CHANGED, "/s", 5),
        (CHANGED, "/s/a", 5),
        (CHANGED, "/s", 5),
        (CHANGED, "/s/a", 5),
        (CHANGED, "/s/a", 6),
    ) == [
        (ChangeKind.MODIFIED, "/e", 4),
        (ChangeKind.CREATED, "/a", 5),
        (ChangeKind.MODIFIED, "/a", 6),
    ]


def test_two_checks_of_absence_below_one_parent_are_no_events() -> None:
    check = [(CREATED, "/s/p", 1), (DELETED, "/s/p", 1)]
    mark = (CHANGED, "/s", 1)
    assert read(mark, *check, mark, mark, *check, mark) == []


def test_brackets_end_with_their_transaction() -> None:
    """Another tool may write the scope's node."""
    assert read((CHANGED, "/s", 1), (CREATED, "/s/a", 2)) == [(ChangeKind.CREATED, "/a", 2)]


def test_old_servers_do_not_say_which_write_an_event_is_of() -> None:
    assert read((CHANGED, "/s", -1), (CREATED, "/s/a", -1)) == [(ChangeKind.CREATED, "/a", None)]


@pytest.mark.parametrize(
    ("scheme", "name", "permissions", "sentence"),
    [
        ("magic", "ann", {"read"}, "scheme"),
        ("sasl", "ann", set(), "permissions"),
        ("sasl", "ann", {"fly"}, "permissions"),
        ("digest", "ann\ud800:secret", {"read"}, "half of a character"),
    ],
)
def test_access_control_that_no_server_takes_is_refused(
    scheme: str, name: str, permissions: set[str], sentence: str
) -> None:
    with pytest.raises(BadRequestError, match=sentence):
        Acl(scheme, name, frozenset(permissions))
