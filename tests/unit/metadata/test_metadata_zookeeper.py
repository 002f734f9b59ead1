"""The parts of the ZooKeeper store that need no server, and the parts of kazoo that it rests on."""

from __future__ import annotations

import asyncio
import inspect
import struct
from importlib import metadata
from typing import cast

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import connection, serialization
from kazoo.protocol.states import ZnodeStat
from packaging.version import Version

from bookie.errors import BadRequestError, InvalidKeyError, UnsupportedError
from bookie.metadata import zookeeper_sasl
from bookie.metadata.changes import ChangeKind
from bookie.metadata.keys import KEY_SIZE_BYTES_MAX, ancestors
from bookie.metadata.records import (
    NOT_EXISTS,
    VALUE_SIZE_BYTES_MAX,
    Acl,
    Check,
    Delete,
    Operation,
    Put,
)
from bookie.metadata.zookeeper_access import from_node_acl, to_node_acl
from bookie.metadata.zookeeper_births import (
    BASE,
    COUNTERS,
    KnownBirths,
    counter_of,
    counters_of,
)
from bookie.metadata.zookeeper_changes import CHANGED, CREATED, DELETED, ChangeReader
from bookie.metadata.zookeeper_known import KnownRecords
from bookie.metadata.zookeeper_nodes import (
    SEQUENCE_MAX,
    NodeReader,
    ReadingLink,
    numbers_used,
)
from bookie.metadata.zookeeper_parents import VirtualParents
from bookie.metadata.zookeeper_sasl import DigestMd5, SaslRefusedError
from bookie.metadata.zookeeper_thread import Answered, Client, NodeEvent, Notice, Pending
from bookie.metadata.zookeeper_tree import (
    KEPT,
    REQUEST_BYTES_MAX,
    Node,
    Planner,
    Scope,
    View,
    birth_of,
    data_version_of,
    overtaken_stat,
    require_representable,
    version_of,
)
from bookie.metadata.zookeeper_wire import (
    CheckVersion,
    CreateNode,
    DeleteNode,
    Exists,
    Multi,
    MultiRefusedError,
    NodeOperation,
    SetData,
)

SCOPE = Scope("/s")
SESSION = 7
OPEN = SetData("/s", None, -1)
"""A bracket."""


def stat(czxid: int = 5, version: int = 0, owner: int = 0) -> ZnodeStat:
    return ZnodeStat(czxid, czxid + version, 1, 2, version, 0, 0, owner, 1, 0, 0)


# ---- kazoo


def test_kazoo_is_the_version_whose_inner_parts_we_replace() -> None:
    assert Version("2.11") <= Version(metadata.version("kazoo")) < Version("2.12")


def test_the_inner_parts_of_kazoo_are_where_they_were() -> None:
    """What `zookeeper_thread` overrides and reads, by name and arguments."""
    overridden = {
        connection.ConnectionHandler: {
            "_connect": ["self", "host", "hostip", "port"],
            "_authenticate_with_sasl": ["self", "host", "timeout"],
            "_read_socket": ["self", "read_timeout"],
            "_send_request": ["self", "read_timeout", "connect_timeout"],
            "_submit": ["self", "request", "timeout", "xid"],
            "_read_header": ["self", "timeout"],
            "_write": ["self", "msg", "timeout"],
            "_socket_error_handling": ["self"],
        },
        KazooClient: {
            "_reset": ["self"],
            "_session_callback": ["self", "state"],
            "start_async": ["self"],
            "stop": ["self"],
            "close": ["self"],
        },
        SequentialThreadingHandler: {
            "start": ["self"],
            "stop": ["self"],
            "select": ["self", "args", "kwargs"],
            "create_connection": ["self", "args", "kwargs"],
            "spawn": ["self", "func", "args", "kwargs"],
        },
    }
    for kind, methods in overridden.items():
        for name, arguments in methods.items():
            assert list(inspect.signature(getattr(kind, name)).parameters) == arguments, name
    client = KazooClient()
    for name in (
        *("_connection", "_conn_retry", "_pending", "_queue", "_state", "_stopped"),
        *("_session_id", "_session_passwd", "last_zxid", "auth_data", "logger"),
    ):
        assert hasattr(client, name), name
    for name in ("_read_sock", "_write_sock", "_socket", "_xid", "ping_outstanding"):
        assert hasattr(client._connection, name), name
    loop = inspect.getsource(connection.ConnectionHandler._connect_attempt)
    assert "if response == CLOSE_RESPONSE" in loop
    assert "self._send_request(read_timeout, connect_timeout)" in loop
    assert "client._pending.append" not in loop
    inside = loop.partition("with self._socket_error_handling():")[2]
    assert "self._read_socket(read_timeout)" in inside
    assert inside.index("self._read_socket") < inside.index("self._socket.close()")
    connect = inspect.getsource(connection.ConnectionHandler._connect)
    assert "read_timeout = negotiated_session_timeout * 2.0 / 3.0" in connect
    assert "client.last_zxid," in connect


def test_kazoo_writes_null_for_none_and_not_for_nothing() -> None:
    """Virtual parents rest on the difference."""
    assert serialization.write_buffer(None) == b"\xff\xff\xff\xff"
    assert serialization.write_buffer(b"") == b"\0\0\0\0"


def test_who_was_told_of_a_change_asks_no_server_that_does_not_know_of_it() -> None:
    """A hand-shake names the last zxid that the client has seen; kazoo forgets that of events."""
    client = Client(lambda batch: None, sasl=None)
    event = struct.pack("!iqi", -1, 9, 0) + struct.pack("!iii", 3, 3, 2) + b"/a"
    batch: list[Answered | Notice] = []
    client._connection._take(event, connection.WATCH_XID, 9, 0, batch)
    assert batch == [NodeEvent(3, "/a", 9)]
    assert client.last_zxid == 9
    client._connection._take(event, connection.WATCH_XID, -1, 0, batch)  # from an old server
    assert client.last_zxid == 9


# ---- SASL


def test_digest_md5_answers_as_its_standard_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of RFC 2831, which is about another service."""
    monkeypatch.setattr(zookeeper_sasl, "_DIGEST_URI", "imap/elwood.innosoft.com")
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


# ---- transactions on the wire


def test_a_refused_transaction_names_its_first_culprit() -> None:
    error = serialization.MultiHeader(-1, False, 0).serialize()
    body = b"".join(
        error + serialization.int_struct.pack(code) for code in (0, -103, -2)
    ) + serialization.multiheader_struct.pack(-1, True, -1)
    with pytest.raises(MultiRefusedError) as caught:
        Multi([]).deserialize(body, 0)
    assert (caught.value.index, caught.value.code) == (1, -103)


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


def test_the_mark_of_a_parent_that_stays_is_no_value() -> None:
    with pytest.raises(InvalidKeyError):
        require_representable(Put("/a", KEPT))


def plan(operations: list[Put | Delete | Check], view: View) -> list[NodeOperation]:
    """Without what concerns counters of births."""
    planned = Planner(SCOPE, operations, view, SESSION).plan()
    return planned.operations[planned.counters :]


def births(*keys: str, version: int = 4) -> dict[str, int]:
    """Counters that somebody read."""
    return {counter: version for key in keys for counter in counters_of(SCOPE.path(key))}


def known_records() -> KnownRecords:
    """Nothing but all counters of births."""
    known = KnownRecords(SCOPE)
    for counter in range(COUNTERS):
        known.births.learn(f"{BASE}/{counter:04}", 4)
    return known


def record(version: int = 0, owner: int = 0) -> Node:
    return Node(5, version, owner, is_record=True, children=0)


def virtual(version: int = 0) -> Node:
    return Node(5, version, 0, is_record=False, children=0)


def test_missing_parents_are_made_inside_brackets() -> None:
    view = View({"/a/b/c": None, "/a/b": None, "/a": record()}, guard=3)
    assert plan([Put("/a/b/c", b"x")], view) == [
        OPEN,
        CreateNode("/s/a/b", None),
        OPEN,
        CreateNode("/s/a/b/c", b"x"),
    ]


def test_the_largest_put_below_the_most_parents_fits_one_request() -> None:
    """Half of it would be brackets, were they not joined."""
    scope, key = Scope("/" + "s" * (KEY_SIZE_BYTES_MAX - 1)), "/a" * (KEY_SIZE_BYTES_MAX // 2)
    everybody = frozenset({"read", "write", "create", "delete", "admin"})
    put = Put(key, bytes(VALUE_SIZE_BYTES_MAX), acl=(Acl("digest", "u" * 200_000, everybody),))
    view = View(dict.fromkeys([key, *ancestors(key)]), guard=3)
    planned = Planner(scope, [put], view, SESSION).plan()
    assert len(Multi(planned.operations).serialize()) < REQUEST_BYTES_MAX


def test_a_record_of_the_transaction_is_made_before_those_below_it() -> None:
    view = View({"/a/b": None, "/a": None}, guard=3)
    planned = Planner(SCOPE, [Put("/a/b", b"2"), Put("/a", b"1")], view, SESSION).plan()
    assert planned.operations[planned.counters :] == [
        CreateNode("/s/a", b"1"),
        CreateNode("/s/a/b", b"2"),
    ]
    assert planned.results == [planned.counters + 1, planned.counters]


def test_a_virtual_parent_is_converted_only_if_it_is_still_one() -> None:
    view = View({"/a": virtual(2)}, guard=3)
    assert plan([Put("/a", b"x", NOT_EXISTS)], view) == [
        SetData("/s", None, 3),
        SetData("/s/a", None, 2),
        OPEN,
        SetData("/s/a", b"x", -1),
    ]


def test_a_second_guard_counts_what_the_transaction_wrote_before() -> None:
    view = View({"/a": virtual(), "/n": None, "/p/q": None, "/p": None}, guard=3)
    operations = plan([Put("/p/q", b""), Check("/a", NOT_EXISTS)], view)
    assert operations[-3:] == [SetData("/s", None, 5), CheckVersion("/s/a", 0), OPEN]


def test_a_take_over_is_a_deletion_and_a_creation_at_once() -> None:
    view = View({"/e": record(2, owner=SESSION + 1)}, births=births("/e"))
    put = Put("/e", b"x", record(2).version, ephemeral=True)
    assert plan([put], view) == [
        OPEN,
        DeleteNode("/s/e", 2),
        CreateNode("/s/e", b"", flags=1),
        SetData("/s/e", b"x", -1),
        OPEN,
    ]
    # Of two who take over, and of an old owner who writes, one finds that another was first.
    counter = SetData(counter_of("/s/e"), None, 4)
    assert Planner(SCOPE, [put], view, SESSION).plan().operations[0] == counter


def test_what_creates_counts_and_what_has_a_version_demands_that_nobody_did() -> None:
    view = View(
        {
            "/new": None,
            "/a/new": None,
            "/a": None,
            "/old": record(2),
            "/gone": record(),
            "/n": None,
        },
        births=births("/old", "/gone"),
    )
    writes: list[Operation] = [
        Put("/new", b""),
        Put("/a/new", b""),
        Put("/old", b"", record(2).version),
        Delete("/gone", record().version),
        Put("/any", b""),
    ]
    planned = Planner(SCOPE, writes, view, SESSION).plan()
    assert set(planned.operations[: planned.counters]) == {
        *(SetData(counter_of(f"/s/{key}"), None, -1) for key in ("new", "a", "a/new", "any")),
        *(CheckVersion(counter_of(f"/s/{key}"), 4) for key in ("old", "gone")),
    }
    free: list[Operation] = [Put("/old", b""), Delete("/gone"), Put("/q/x", b"", sequential=True)]
    assert Planner(SCOPE, free, view, SESSION).plan().counters == 0


def test_a_name_that_may_have_been_numbered_has_the_counter_of_its_parent_too() -> None:
    assert counters_of("/s/a") == (counter_of("/s/a"),)
    assert counters_of("/s/a/n-123456789") == (counter_of("/s/a/n-123456789"),)
    numbered = "/s/a/n-0123456789"
    assert counters_of(numbered) == (counter_of(numbered), counter_of("/s/a"))


def test_births_are_known_by_the_latest_answer() -> None:
    known = KnownBirths()
    known.learn("/c", 5)
    known.learn("/c", 4)
    assert known.find(["/c"]) == {"/c": 5}
    assert known.find(["/c", "/d"]) is None
    known.clear()
    assert known.find(["/c"]) is None


def test_a_version_is_worth_nothing_without_the_births() -> None:
    known = KnownRecords(SCOPE)
    known.learn("/a", stat(5, 3))
    version = version_of(stat(5, 3))
    assert known.view([Put("/a", b"", version)], {}, SESSION) is None
    assert known.view([Put("/a", b"")], {}, SESSION) is not None
    known.births.learn(counter_of("/s/a"), 7)
    view = known.view([Put("/a", b"", version)], {}, SESSION)
    assert view is not None
    assert view.births == {counter_of("/s/a"): 7}


def test_absence_is_checked_by_a_creation_that_is_taken_back() -> None:
    view = View({"/a": None}, guard=3)
    assert plan([Check("/a", NOT_EXISTS)], view) == [
        OPEN,
        CreateNode("/s/a", None),
        DeleteNode("/s/a", -1),
        OPEN,
    ]


def test_the_parent_of_sequential_records_stays() -> None:
    view = View({"/l/x": None, "/l": None}, guard=3)
    operations = plan([Put("/l/x/n-", b"", ephemeral=True, sequential=True)], view)
    assert operations == [
        *(OPEN, CreateNode("/s/l", None), CreateNode("/s/l/x", KEPT), OPEN),
        CreateNode("/s/l/x/n-", b"", flags=3),
    ]


def test_a_known_record_needs_no_read_and_an_earlier_life_does() -> None:
    known = known_records()
    known.learn("/a", stat(5, 3))
    now, before = version_of(stat(5, 2)), version_of(stat(4, 3))
    for operation in (Put("/a", b"", now), Delete("/a", now), Check("/a", now)):
        view = known.view([operation], {}, SESSION)
        assert view is not None
        assert view.nodes["/a"] == record(2)
    for operation in (Put("/a", b"", before), Delete("/a", before), Check("/a", before)):
        assert known.view([operation], {}, SESSION) is None
    known.forget("/a")
    assert known.view([Delete("/a")], {}, SESSION) is None
    assert known.view([Put("/a", b"")], {}, SESSION) == View()
    assert known.view([Put("/l/n-", b"", sequential=True)], {}, SESSION) is None
    assert known.view([Put("/l/n-", b"", sequential=True)], {"/l": None}, SESSION) == View()


def test_a_guard_follows_the_server_past_its_greatest_version() -> None:
    view = View({"/v": virtual(), "/p/x": None, "/p": None}, guard=2**31 - 1)
    writes = [Put("/p/x", b""), Put("/v", b"x")]
    guards = [o.version for o in plan([*writes], view) if isinstance(o, SetData) and o.path == "/s"]
    assert guards == [-1, -1, -(2**31) + 1, -1]


def test_access_control_on_what_has_children_is_refused() -> None:
    acl = (Acl("world", "anyone", frozenset({"read"})),)
    parent = Node(5, 0, 0, is_record=False, children=1)
    with pytest.raises(UnsupportedError, match="/p"):
        plan([Put("/p", b"x", acl=acl)], View({"/p": parent}, guard=3))


@pytest.mark.parametrize(("made", "now"), [(0, 0), (7, 3), (2**30 + 5, 4), (2**31 - 1, 1)])
def test_the_next_number_is_told_by_what_the_server_counts(made: int, now: int) -> None:
    cversion = (2 * made - now + 2**31) % 2**32 - 2**31  # as Java overflows
    node = stat()._replace(cversion=cversion, numChildren=now)
    assert numbers_used(node) == made


class _CountingLink:
    """Answers reads of a scope whose /q has had almost all children that it can have."""

    connection = losses = session = 0
    is_up = True

    async def usable(self, deadline: float) -> int:
        return 0

    def send(self, request: Exists, *_: object) -> Pending:
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(stat()._replace(cversion=-(2**21), dataLength=5))
        return Pending(request, answer, 0.0, None, None)


async def test_numbers_that_would_turn_negative_are_not_asked_for() -> None:
    link = cast("ReadingLink", _CountingLink())
    nodes = NodeReader(link, SCOPE, KnownBirths())
    parents = VirtualParents(link, SCOPE, nodes)
    parents.note_kept("/q", SEQUENCE_MAX - 1)
    assert "/q" in parents.kept
    parents.note_kept("/q", SEQUENCE_MAX)
    assert "/q" not in parents.kept
    with pytest.raises(InvalidKeyError, match="used up"):
        await nodes.view([Put("/q/n-", b"", sequential=True)], 0.0)


def test_an_answer_that_an_event_has_overtaken_is_not_learned() -> None:
    known = known_records()
    known.note_deletion("/a", 9)
    known.note_quiet()
    known.learn("/a", stat(8))
    assert known.view([Delete("/a")], {}, SESSION) is None
    known.learn("/a", stat(9))  # a take-over deletes and creates at once
    assert known.view([Delete("/a")], {}, SESSION) is not None


def test_a_known_record_of_another_session_is_read_before_it_is_taken_over() -> None:
    known = known_records()
    known.learn("/a", stat(5, 3, owner=SESSION + 1))
    version = version_of(stat(5, 3))
    take_over = [Put("/a", b"", version, ephemeral=True)]
    assert known.view(take_over, {}, SESSION) is None
    assert known.view(take_over, {}, SESSION + 1) is not None
    assert known.view([Put("/a", b"", version)], {}, SESSION) is not None


def test_what_is_known_is_bounded() -> None:
    known = known_records()
    known.SIZE_MAX = 3
    for number in range(5):
        known.learn(f"/{number}", stat())
    assert [number for number in range(5) if known.view([Delete(f"/{number}")], {}, SESSION)] == [
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
