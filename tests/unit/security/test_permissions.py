"""Roles: who has which right, for which ledger, and what a refusal says."""

from __future__ import annotations

import asyncio
import itertools
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from google.protobuf.descriptor import ServiceDescriptor

from bookie._pb import bookie_pb2
from bookie.cli import app
from bookie.cluster.role_grants import RECORD_BYTES_MAX, RoleGrants, decode_grants, encode_grants
from bookie.daemon.http import HttpAccess, serve_http
from bookie.daemon.readiness import Readiness
from bookie.env import SystemClock
from bookie.errors import (
    BadRequestError,
    ConfigurationError,
    FormatError,
    MetadataUnavailableError,
    NotPermittedError,
)
from bookie.ids import MAX_ID
from bookie.metadata.connect import open_store
from bookie.security import permissions as permissions_module
from bookie.security.audit import LINES_EACH_MAX, LINES_PER_SECOND_MAX, AuditLog
from bookie.security.gatekeeper import Gatekeeper, PrincipalRules
from bookie.security.grants import ANONYMOUS, GRANTS_MAX, UNLIMITED, Grant, Grants, GrantScope
from bookie.security.identity import PeerIdentity
from bookie.security.permissions import LOOK_UPS_EACH_MAX, LOOK_UPS_MAX, LedgerLogs, Permissions
from bookie.security.rights import HTTP_RIGHTS, ROLE_RIGHTS, RPC_RIGHTS, Right, Role, least_role
from bookie.telemetry import Metrics
from bookie.wire.interfaces import SERVICE

SHOP = "shop/orders"


class Time(SystemClock):
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


def logs_of(known: dict[int, str], asked: list[int] | None = None) -> LedgerLogs:
    async def find(ledger_id: int) -> str | None:
        if asked is not None:
            asked.append(ledger_id)
        return known.get(ledger_id)

    return LedgerLogs(find)


def permissions(
    *grants: Grant, principal: str = "p", logs: LedgerLogs | None = None
) -> Permissions:
    all_grants = Grants(grants)
    return Permissions(principal, lambda: all_grants, logs or logs_of({}))


EXPECTED = {
    Role.READER: {Right.ASK, Right.READ},
    Role.WRITER: {Right.ASK, Right.READ, Right.WRITE},
    Role.RECOVERER: {Right.ASK, Right.READ, Right.RECOVER},
    Role.REPAIRER: {Right.ASK, Right.READ, Right.RECOVER, Right.LIST},
    Role.ADMIN: set(Right),
}


@pytest.mark.parametrize(("role", "right"), list(itertools.product(Role, Right)))
def test_each_role_gives_its_rights_and_no_more(role: Role, right: Right) -> None:
    assert permissions(Grant("p", role)).decide(right, 7) is (right in EXPECTED[role])
    assert bool(ROLE_RIGHTS[least_role(right)] & right)


def test_the_table_has_each_method_of_the_service() -> None:
    service: ServiceDescriptor = bookie_pb2.DESCRIPTOR.services_by_name[SERVICE.rpartition(".")[2]]
    assert set(RPC_RIGHTS) == {method.name for method in service.methods}


async def test_the_table_has_each_path_of_the_http_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from aiohttp import web

    routes: list[tuple[str, str]] = []

    original = web.Application.add_routes

    def add_routes(self: web.Application, found: list[web.RouteDef]) -> object:
        for one in found:
            paths = ["/check", "/scrub"] if "{" in one.path else [one.path]
            routes.extend((one.method, path) for path in paths)
        return original(self, found)

    monkeypatch.setattr(web.Application, "add_routes", add_routes)
    async with serve_http(Metrics(), Readiness(), host="127.0.0.1", port=0):
        assert set(routes) == set(HTTP_RIGHTS)


def test_without_a_grant_nothing_is_permitted() -> None:
    nobody = permissions(Grant("q", Role.ADMIN))
    assert not any(nobody.decide(right, 1) for right in Right)
    assert not nobody.decide_everywhere(Right.ASK)


def test_a_name_with_a_star_means_all_that_begin_so_but_never_the_anonymous() -> None:
    grants = (Grant("shop-*", Role.WRITER), Grant("*", Role.READER))
    assert permissions(*grants, principal="shop-1").decide(Right.WRITE, 1)
    assert not permissions(*grants, principal="shop").decide(Right.WRITE, 1)
    assert permissions(*grants, principal="other").decide(Right.READ, 1)
    assert not permissions(*grants, principal=ANONYMOUS).decide(Right.READ, 1)
    named = Grant(ANONYMOUS, Role.READER)
    assert permissions(named, principal=ANONYMOUS).decide(Right.READ, 1)


@pytest.mark.parametrize(("ledger_id", "may"), [(9, False), (10, True), (20, True), (21, False)])
def test_a_range_of_ledgers_includes_both_ends(ledger_id: int, may: bool) -> None:
    some = permissions(Grant("p", Role.WRITER, GrantScope(10, 20)))
    assert some.decide(Right.WRITE, ledger_id) is may
    # A right for some ledgers is none for all, but it lets its owner ask what a bookie is.
    assert not some.decide_everywhere(Right.READ)
    assert some.decide_everywhere(Right.ASK)


async def test_a_right_for_logs_is_looked_up_once() -> None:
    asked: list[int] = []
    logs = logs_of({1: SHOP, 2: "bank/a", 3: "", 4: "shop2/x"}, asked)
    some = permissions(Grant("p", Role.READER, GrantScope(log="shop/*")), logs=logs)
    assert some.decide(Right.READ, 1) is None
    assert await some.may(Right.READ, 1)
    assert not await some.may(Right.WRITE, 1)
    for other in (2, 3, 4):
        assert not await some.may(Right.READ, other)
    assert [await some.may(Right.READ, one) for one in (1, 2, 3, 4)] == [True, False, False, False]
    assert asked == [1, 2, 3, 4]


async def test_a_ledger_that_the_store_does_not_have_is_never_remembered() -> None:
    """A stranger who asks for the next id must not keep its owner out."""
    known = dict[int, str]()
    logs = logs_of(known)
    stranger = permissions(Grant("p", Role.READER, GrantScope(log="x/*")), logs=logs)
    owner = permissions(Grant("p", Role.WRITER, GrantScope(log=SHOP)), logs=logs)
    assert not await stranger.may(Right.READ, 5)
    known[5] = SHOP
    assert await owner.may(Right.WRITE, 5)
    assert not await stranger.may(Right.READ, 5)


async def test_who_wants_the_same_waits_for_the_same_look_up() -> None:
    asked: list[int] = []
    now, most = 0, 0

    async def find(ledger_id: int) -> str | None:
        nonlocal now, most
        asked.append(ledger_id)
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return SHOP

    logs, grant = LedgerLogs(find), Grant("*", Role.READER, GrantScope(log=SHOP))
    callers = [permissions(grant, principal=f"p{number}", logs=logs) for number in range(10)]
    async with asyncio.TaskGroup() as group:
        for number in range(1000):
            place, turn = number % 10, number // 10
            group.create_task(callers[place].may(Right.READ, (10 * place + turn) % 100))
    assert sorted(asked) == list(range(100))
    assert most == LOOK_UPS_MAX


async def test_a_look_up_goes_on_without_the_first_who_asked() -> None:
    began, end = asyncio.Event(), asyncio.Event()

    async def find(_ledger_id: int) -> str | None:
        began.set()
        await end.wait()
        return SHOP

    logs = LedgerLogs(find)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(logs.learn(1))
        await began.wait()
        second = group.create_task(logs.learn(1))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        end.set()
        assert await second == SHOP


async def test_other_rights_need_no_look_into_the_store() -> None:
    asked: list[int] = []
    grants = (Grant("p", Role.READER), Grant("p", Role.WRITER, GrantScope(log=SHOP)))
    some = permissions(*grants, logs=logs_of({}, asked))
    assert some.decide(Right.READ, 1) is True
    assert asked == []


def test_changed_grants_count_for_what_was_decided_before() -> None:
    now = [Grants([Grant("p", Role.WRITER, GrantScope(0, 5))])]
    some = Permissions("p", lambda: now[0], logs_of({}))
    assert some.decide(Right.WRITE, 3)
    now[0] = Grants([Grant("p", Role.WRITER, GrantScope(4, 5))])
    assert not some.decide(Right.WRITE, 3)
    now[0] = Grants()
    assert not some.decide(Right.WRITE, 3)
    now[0] = Grants([Grant("p", Role.ADMIN)])
    assert some.decide(Right.CHANGE, 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Grant("", Role.READER),
        lambda: Grant("a\n", Role.READER),
        lambda: Grant("a*b", Role.READER),
        lambda: Grant("x" * 257, Role.READER),
        lambda: Grant("p", Role.READER, GrantScope(5, 4)),
        lambda: Grant("p", Role.READER, GrantScope(-1, 4)),
        lambda: Grant("p", Role.READER, GrantScope(log="orders")),
        lambda: Grant("p", Role.READER, GrantScope(log="*/orders")),
    ],
)
def test_what_is_no_grant_is_refused(make: Callable[[], Grant]) -> None:
    with pytest.raises(BadRequestError):
        make()


def test_grants_as_a_record() -> None:
    grants = Grants(
        [
            Grant("p", Role.READER),
            Grant("a", Role.WRITER, GrantScope(3, 9)),
            Grant("a", Role.RECOVERER, GrantScope(log="shop/*")),
        ]
    )
    again = decode_grants(encode_grants(grants))
    assert set(again.all) == set(grants.all)
    assert encode_grants(again) == encode_grants(Grants(reversed(grants.all)))


@pytest.mark.parametrize(
    "row",
    [
        b'{"principal":"p","role":"king"}',
        b'{"principal":"p"}',
        b'{"principal":"","role":"reader"}',
        b'{"first_ledger":-1,"principal":"p","role":"reader"}',
        b'{"first_ledger":9,"last_ledger":3,"principal":"p","role":"reader"}',
        b'{"log":3,"principal":"p","role":"reader"}',
    ],
)
def test_a_damaged_record_gives_nobody_anything(row: bytes) -> None:
    with pytest.raises(FormatError):
        decode_grants(b'{"format":"bookie-roles","grants":[' + row + b'],"version":1}')


async def test_grants_are_changed_by_compare_and_set() -> None:
    async with open_store("memory://roles") as store:
        first, second = RoleGrants(store), RoleGrants(store)
        assert (await first.read()).all == ()
        assert await first.grant(Grant("p", Role.READER))
        assert not await second.grant(Grant("p", Role.READER))
        assert await second.grant(Grant("p", Role.WRITER, GrantScope(1, 2)))
        assert await first.grant(Grant("q", Role.READER))
        assert await first.revoke("p", Role.WRITER, None) == 1
        assert await first.revoke("p", None, GrantScope(1, 2)) == 0
        assert await second.revoke("p", None, None) == 1
        assert [one.principal for one in (await first.read()).all] == ["q"]


async def test_there_is_a_most_of_grants() -> None:
    async with open_store("memory://many") as store:
        from bookie.cluster import keys

        two = Grants(Grant("p" * 250 + str(number), Role.READER) for number in range(2))
        row = len(encode_grants(two)) - len(encode_grants(Grants(two.all[:1])))
        for length, count in ((4, GRANTS_MAX), (251, (RECORD_BYTES_MAX - 50) // row)):
            names = (f"{number:0{length}}" for number in range(count))
            many = Grants(Grant(name, Role.READER) for name in names)
            assert len(encode_grants(many)) <= RECORD_BYTES_MAX
            await store.put(keys.ROLES, encode_grants(many))
            with pytest.raises(BadRequestError, match="there is no room for more"):
                await RoleGrants(store).grant(Grant("q" * 256, Role.READER))


def gatekeeper(*grants: Grant, required: bool = True, rules: str = "cn:(.+)") -> Gatekeeper:
    clock = Time()
    keeper = Gatekeeper(
        PrincipalRules(rules.split()), logs_of({}), clock, AuditLog(clock), is_required=required
    )
    keeper.take(Grants(grants))
    return keeper


def test_who_shows_nothing_is_anonymous() -> None:
    caller = gatekeeper(Grant("*", Role.ADMIN)).caller(None, "", "ipv4:10.0.0.9:1")
    assert caller.principal == ANONYMOUS
    with pytest.raises(NotPermittedError, match=r"^anonymous lacks the role reader$"):
        caller.require_everywhere("GetInfo", Right.READ)


def test_a_bookie_that_asks_for_no_roles_lets_everybody_do_everything() -> None:
    keeper = gatekeeper(required=False)
    for identity in (None, PeerIdentity("p")):
        caller = keeper.caller(identity, "", "")
        assert all(caller.decide(right, MAX_ID) for right in Right)
    assert len(UNLIMITED.all) == 2


@pytest.mark.parametrize(
    ("rules", "identity", "principal"),
    [
        ("cn:(.+)", PeerIdentity("shop"), "shop"),
        ("cn:shop", PeerIdentity("shop"), "shop"),
        ("cn:(.+)", PeerIdentity("", ("a",)), ANONYMOUS),
        (r"san:spiffe://x/(.+)", PeerIdentity("c", ("h", "spiffe://x/shop")), "shop"),
        (r"san:spiffe://x/(.+)", PeerIdentity("c", ("spiffe://y/shop",)), ANONYMOUS),
        (r"san:spiffe://x/(.+) cn:(.+)", PeerIdentity("c", ("h",)), "c"),
        (r"cn:(.+)\.clients", PeerIdentity("a.clients.evil"), ANONYMOUS),
        ("cn:(.+)", PeerIdentity("x" * 300), ANONYMOUS),
    ],
)
def test_a_certificate_becomes_a_name(rules: str, identity: PeerIdentity, principal: str) -> None:
    assert gatekeeper(rules=rules).caller(identity, "", "").principal == principal


@pytest.mark.parametrize("rules", ["x:(.+)", "cn:(", "(.+)"])
def test_what_is_no_rule_is_refused_at_the_start(rules: str) -> None:
    with pytest.raises(ConfigurationError, match="is no rule for names"):
        PrincipalRules(rules.split())


def test_a_refusal_names_the_role_and_never_what_exists() -> None:
    caller = gatekeeper().caller(PeerIdentity("p"), "", "")
    error = caller.refuse("Fence", Right.RECOVER, 7)
    assert str(error) == "p lacks the role recoverer for this ledger"


def test_a_flood_of_refusals_is_counted_and_not_written(caplog: pytest.LogCaptureFixture) -> None:
    clock = Time()
    audit = AuditLog(clock)
    for _ in range(1000):
        audit.refused("p", "ipv4:1.2.3.4:5", "Fence", 1, "recover")
    assert len(caplog.records) == LINES_EACH_MAX
    for number in range(1000):
        audit.refused(f"q{number}", "ipv4:1.2.3.4:5", "Fence", 1, "recover")
    assert len(caplog.records) == LINES_PER_SECOND_MAX
    clock.seconds += 2
    audit.refused("p", "ipv4:1.2.3.4:5", "Fence", 1, "recover")
    assert "audit_lines_left_out" in [record.getMessage() for record in caplog.records][-2]


def test_http_access_without_a_gatekeeper_asks_for_nothing() -> None:
    assert not HttpAccess().asks_roles
    assert not HttpAccess().asks_certificates


def test_a_token_that_nobody_can_check_is_refused() -> None:
    keeper = gatekeeper(Grant("p", Role.ADMIN))
    with pytest.raises(NotPermittedError, match="takes no tokens"):
        keeper.caller(PeerIdentity("p"), "Bearer x", "")
    assert gatekeeper(required=False).caller(PeerIdentity("p"), "Bearer x", "").principal == "p"


def test_what_an_admin_changed_is_noted_in_a_flood(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    audit = AuditLog(Time())
    for _ in range(1000):
        audit.did("p", "", "Fence", 1)
    audit.did("admin", "", "PUT /garbage action=force", None, always=True)
    assert len(caplog.records) == LINES_EACH_MAX + 1


@pytest.mark.parametrize("event", ["audit_refused", "audit_did"])
def test_a_flood_of_one_caller_hides_no_other(event: str, caplog: pytest.LogCaptureFixture) -> None:
    """He may fence his own ledgers, or be refused, as often as he likes."""
    caplog.set_level("INFO")
    audit = AuditLog(Time())
    for _ in range(1000):
        audit.did("p", "", "Fence", 1)
        audit.refused("p", "", "Fence", 1, "recover")
    if event == "audit_did":
        audit.did("q", "", "Fence", 2)
    else:
        audit.refused("q", "", "Fence", 2, "recover")
    last = caplog.records[-1].getMessage()
    assert (last.split()[0], "who='q'" in last) == (event, True)


@pytest.mark.parametrize("command", ["grant shop writer", "revoke shop"])
def test_an_empty_variable_is_no_limit(command: str, tmp_path: Path) -> None:
    uri = f"local://{tmp_path}/metadata"
    assert app.run(["cluster", "init", "-m", uri]) == 0
    assert app.run(["security", "role", "grant", "shop", "reader", "-m", uri]) == 0
    for option in ("--log", "--namespace", "--ledgers"):
        words = ["security", "role", *command.split(), option, "", "-m", uri]
        assert app.run(words) != 0


class Counted:
    """A store that is away, and says how many look-ups it has."""

    def __init__(self) -> None:
        self.now = 0
        self.open = asyncio.Event()
        self.asked: list[int] = []

    async def find(self, ledger_id: int) -> str | None:
        self.asked.append(ledger_id)
        self.now += 1
        try:
            await self.open.wait()
        finally:
            self.now -= 1
        return SHOP


async def test_look_ups_that_nobody_waits_for_end() -> None:
    """Callers come and go while the store is away. What they asked must not pile up."""
    store = Counted()
    logs = LedgerLogs(store.find)
    some = permissions(Grant("p", Role.READER, GrantScope(log=SHOP)), logs=logs)
    before = len(asyncio.all_tasks())
    async with asyncio.TaskGroup() as group:
        for number in range(100):
            asking = group.create_task(some.may(Right.READ, number))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            asking.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert store.now == 0
    assert len(asyncio.all_tasks()) == before
    store.open.set()
    assert await some.may(Right.READ, 5)


async def test_nobody_keeps_others_from_their_look_ups() -> None:
    """One caller asks for many ledgers, and the store is slow: another one's first is looked up."""
    store = Counted()
    logs = LedgerLogs(store.find)
    greedy, other = (
        permissions(Grant(name, Role.READER, GrantScope(log=SHOP)), principal=name, logs=logs)
        for name in ("greedy", "other")
    )
    async with asyncio.TaskGroup() as group:
        for number in range(1000):
            group.create_task(greedy.may(Right.READ, number))
        for _ in range(5):
            await asyncio.sleep(0)
        group.create_task(other.may(Right.READ, 5000))
        for _ in range(5):
            await asyncio.sleep(0)
        assert 5000 in store.asked
        assert len(store.asked) == LOOK_UPS_EACH_MAX + 1
        store.open.set()


async def unanswered(asking: Awaitable[bool]) -> None:
    with pytest.raises(MetadataUnavailableError, match="the metadata store did not say within"):
        await asking


async def test_a_store_that_is_away_holds_up_no_caller_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client's adds stand behind each other: one look-up must not let all of them time out."""
    monkeypatch.setattr(permissions_module, "LOOK_UP_SECONDS_MAX", 0.05)
    store = Counted()
    some = permissions(Grant("p", Role.WRITER, GrantScope(log=SHOP)), logs=LedgerLogs(store.find))
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:  # for a twentieth of a second
        for number in range(3 * LOOK_UPS_EACH_MAX):
            group.create_task(unanswered(some.may(Right.WRITE, number)))
    assert store.now == 0
    store.open.set()
    assert await some.may(Right.WRITE, 1)


async def test_a_look_up_is_left_out_if_the_log_decides_nothing() -> None:
    """Right of a range, or a right that no log gives: the store may be away."""
    asked: list[int] = []
    grants = (
        Grant("p", Role.READER, GrantScope(0, 9)),
        Grant("p", Role.WRITER, GrantScope(log=SHOP)),
    )
    some = permissions(*grants, logs=logs_of({}, asked))
    assert some.decide(Right.READ, 5) is True
    assert some.decide(Right.RECOVER, 5) is False
    assert some.decide(Right.WRITE, 5) is None
    assert some.decide(Right.READ, 10) is None
    assert asked == []


def test_decisions_of_many_principals_take_little_memory() -> None:
    """Each remembers what it decided; a bookie has room for thousands of principals."""
    logs, grant = logs_of({}), Grant("*", Role.READER, GrantScope(0, 10**6))
    principals = [permissions(grant, principal=f"p{number}", logs=logs) for number in range(4)]
    tracemalloc.start()
    try:
        for one in principals:
            for ledger_id in range(30_000):
                assert one.decide(Right.READ, ledger_id)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < len(principals) * 1_500_000


@pytest.mark.parametrize("method", ["GET", "PUT", "X" * 2000])
async def test_a_stranger_writes_nothing_of_his_own_into_the_audit_log(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """HTTP listens to all: whoever reaches the port chooses method and path, up to 8 KiB."""
    async with (
        serve_http(
            Metrics(), Readiness(), host="127.0.0.1", port=0, access=HttpAccess(None, gatekeeper())
        ) as port,
        aiohttp.ClientSession() as session,
    ):
        for path in ("/" + "x" * 4000, "/metrics%0aaudit_did", "/metrics"):
            answer = await session.request(method, f"http://127.0.0.1:{port}{path}")
            assert answer.status in (400, 403)
    lines = [record.getMessage() for record in caplog.records]
    assert not any("xxx" in line or "audit_did" in line for line in lines)
    assert all(len(line) < 200 for line in lines)


@pytest.mark.parametrize(
    "ledgers", ["9" * 5000, "0-" + "9" * 5000, "9" * 20, "-", "5-", "-5", "5-4"]
)
def test_a_range_that_is_none_is_refused_in_a_sentence(
    ledgers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["security", "role", "grant", "p", "reader", "--ledgers", ledgers]
    assert app.run([*words, "-m", f"local://{tmp_path}/metadata"]) != 0
    assert "FIRST-LAST" in capsys.readouterr().err
