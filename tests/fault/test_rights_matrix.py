"""Every call by every role at a bookie that runs: allowed or refused, as the tables below say.

The tables are written by hand. They state what `docs/security.md` promises, and owe nothing to
`bookie.security.rights`. A call of the service or of HTTP that has no row fails the first test.
A refusal is the status NOT_PERMITTED, or 403 over HTTP, and it has no effect.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from bookie._pb import bookie_pb2 as pb
from bookie.cluster.role_grants import RoleGrants
from bookie.ids import LOG_TAG, NO_ENTRY
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.metadata.connect import open_store
from bookie.security.grants import Grant, GrantScope
from bookie.security.rights import HTTP_RIGHTS, Role
from bookie.wire.interfaces import SERVICE
from tests.fault.daemon_process import Daemon
from tests.fault.guarded_bookie import NOBODY, GuardedBookie, guarded_bookie
from tests.fault.raw_calls import CALLS, CHANGES, RawBookie, add, effect, prepare, until_status

FOLLOWED_SECONDS_MAX = 60.0
"""A bookie follows a change of roles within a second, on an idle machine."""

RPC_TABLE = """
call                reader  writer  recoverer  repairer  admin  anonymous  unknown
AddStream           no      yes     no         no        yes    no         no
AddStream recovery  no      no      yes        yes       yes    no         no
Read                yes     yes     yes        yes       yes    no         no
Read fencing        no      no      yes        yes       yes    no         no
ReadStream          yes     yes     yes        yes       yes    no         no
ReadStream fencing  no      no      yes        yes       yes    no         no
ReadLac             yes     yes     yes        yes       yes    no         no
Fence               no      no      yes        yes       yes    no         no
WatchLac            yes     yes     yes        yes       yes    no         no
Force               no      yes     no         no        yes    no         no
WriteLac            no      yes     no         no        yes    no         no
ListEntries         yes     yes     yes        yes       yes    no         no
ListLedgers         no      no      no         yes       yes    no         no
GetInfo             yes     yes     yes        yes       yes    no         no
health              yes     yes     yes        yes       yes    yes        yes
"""

HTTP_TABLE = """
call             reader  writer  recoverer  repairer  admin  anonymous  unknown
GET /metrics     yes     yes     yes        yes       yes    no         no
GET /healthz     yes     yes     yes        yes       yes    yes        yes
GET /readyz      yes     yes     yes        yes       yes    yes        yes
GET /bookie      yes     yes     yes        yes       yes    no         no
GET /check       yes     yes     yes        yes       yes    no         no
GET /scrub       yes     yes     yes        yes       yes    no         no
PUT /read-only   no      no      no         no        yes    no         no
PUT /garbage     no      no      no         no        yes    no         no
PUT /compaction  no      no      no         no        yes    no         no
PUT /check       no      no      no         no        yes    no         no
PUT /scrub       no      no      no         no        yes    no         no
"""

LIMITS_TABLE = """
call                inside  other-ledger  log  other-log  no-log  namespace  other-namespace
AddStream           yes     no            yes  no         no      yes        no
AddStream recovery  yes     no            yes  no         no      yes        no
Read                yes     no            yes  no         no      yes        no
Read fencing        yes     no            yes  no         no      yes        no
ReadStream          yes     no            yes  no         no      yes        no
ReadStream fencing  yes     no            yes  no         no      yes        no
ReadLac             yes     no            yes  no         no      yes        no
Fence               yes     no            yes  no         no      yes        no
WatchLac            yes     no            yes  no         no      yes        no
Force               yes     no            yes  no         no      yes        no
WriteLac            yes     no            yes  no         no      yes        no
ListEntries         yes     no            yes  no         no      yes        no
ListLedgers         no      no            no   no         no      no         no
GetInfo             yes     yes           yes  yes        yes     yes        yes
health              yes     yes           yes  yes        yes     yes        yes
"""
"""An admin of some ledgers, of one log or of one namespace: in his place, and beside it."""

INSIDE = GrantScope(1_000_000, 1_999_999)

CARRIERS = ("grpc", "frames")


def rows(table: str) -> dict[str, dict[str, bool]]:
    """Call → column → whether it is allowed. Columns are two spaces apart at least."""
    head, *lines = (
        [cell.strip() for cell in line.split("  ") if cell.strip()]
        for line in table.strip().splitlines()
    )
    found = {}
    for name, *cells in lines:
        assert set(cells) <= {"yes", "no"}, name
        found[name] = {column: cell == "yes" for column, cell in zip(head[1:], cells, strict=True)}
    return found


def cells(table: str) -> Iterator[tuple[str, str, bool]]:
    for call, row in rows(table).items():
        for column, is_allowed in row.items():
            yield call, column, is_allowed


def test_each_call_has_a_row() -> None:
    """A call that is new in the contract needs rows here, and roles without a column as well."""
    methods = {one.name for one in pb.DESCRIPTOR.services_by_name["Bookie"].methods}
    assert pb.DESCRIPTOR.services_by_name["Bookie"].full_name == SERVICE
    listed = {call.partition(" ")[0] for call in rows(RPC_TABLE)}
    assert listed == methods | {"health"}
    assert set(rows(RPC_TABLE)) == set(rows(LIMITS_TABLE)) == set(CALLS)
    assert set(rows(HTTP_TABLE)) == {f"{method} {path}" for method, path in HTTP_RIGHTS}
    columns = {role.value for role in Role} | {"anonymous", "unknown"}
    for table in (RPC_TABLE, HTTP_TABLE):
        assert all(set(row) == columns for row in rows(table).values())


def grants() -> list[Grant]:
    """Each role for the principal of its name, and admins with limits."""
    return [
        *(Grant(role.value, role) for role in Role),
        Grant("ledgers", Role.ADMIN, INSIDE),
        Grant("log", Role.ADMIN, GrantScope(log="shop/orders")),
        Grant("namespace", Role.ADMIN, GrantScope(log="shop/*")),
    ]


async def check(
    bookie: GuardedBookie, caller: RawBookie, call: str, ledger_id: int, is_allowed: bool
) -> str:
    """Make a call about a prepared ledger; what is wrong with the answer and its effect."""
    status = await CALLS[call](caller, ledger_id)
    wanted = pb.STATUS_OK if is_allowed else pb.STATUS_NOT_PERMITTED
    if status != wanted:
        return f"answered {pb.Status.Name(status)}"
    found = await effect(bookie.admin, ledger_id)
    due = CHANGES.get(call, "") if is_allowed else ""
    return "" if found == due else f"left {found or 'nothing'}"


def name_of(column: str) -> str:
    return NOBODY if column == "anonymous" else column


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bookie(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GuardedBookie]:
    async with guarded_bookie(tmp_path_factory.mktemp("rights"), grants()) as started:
        yield started


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.timeout(300)
async def test_the_matrix(bookie: GuardedBookie) -> None:
    """All callers, by certificate and by token, and roles with limits, over both carriers."""
    wrong = await requests(bookie)
    for carrier in CARRIERS:
        wrong += await calls(bookie, carrier) + await limited_calls(bookie, carrier)
    assert not wrong, "\n".join(wrong)
    await audited(bookie)


def served(table: str, carrier: str) -> list[tuple[str, str, bool]]:
    """The cells of a table whose calls a carrier has: health is gRPC's own."""
    return [cell for cell in cells(table) if carrier == "grpc" or cell[0] != "health"]


async def calls(bookie: GuardedBookie, carrier: str) -> list[str]:
    """Each RPC by each role; a token counts although the certificate beside it is an admin's."""
    everything = served(RPC_TABLE, carrier)
    ids = {(*cell[:2], way): next(bookie.ids) for cell in everything for way in "ct"}
    await prepare(bookie.admin, ids.values())
    columns = {column for _, column, _ in everything}
    callers = {(one, "c"): bookie.certificate(name_of(one), carrier) for one in columns}
    admin = bookie.certificate("client", carrier)
    for one in columns:
        token = bookie.token(one)
        callers[one, "t"] = RawBookie(admin.channel, bookie.instance_id, token)
    wrong = []
    for call, column, is_allowed in everything:
        for way in "ct":
            ledger_id = ids[call, column, way]
            said = await check(bookie, callers[column, way], call, ledger_id, is_allowed)
            if said:
                wrong.append(f"{call} of {column} by {way} and {carrier}: {said}")
    return wrong


async def limited_calls(bookie: GuardedBookie, carrier: str) -> list[str]:
    """A role for ledger ids, a log or a namespace gives nothing elsewhere."""
    places = {
        "inside": ("ledgers", ""),
        "other-ledger": ("ledgers", ""),
        "log": ("log", "shop/orders"),
        "other-log": ("log", "shop/orders2"),
        "no-log": ("log", ""),
        "namespace": ("namespace", "shop/bills"),
        "other-namespace": ("namespace", "shopping/bills"),
    }
    inside = itertools.count(INSIDE.first_ledger_id + 1000 * CARRIERS.index(carrier))
    everything = served(LIMITS_TABLE, carrier)
    ids = {cell[:2]: next(inside if cell[1] == "inside" else bookie.ids) for cell in everything}
    await prepare(bookie.admin, ids.values())
    async with open_store(bookie.cluster.uri) as store:
        ledgers = LedgerManager(store)
        for (_, column), ledger_id in ids.items():
            await ledgers.create(metadata_of(ledger_id, places[column][1]))
    callers = {one: bookie.certificate(one, carrier) for one, _ in places.values()}
    wrong = []
    for call, column, is_allowed in everything:
        caller, ledger_id = callers[places[column][0]], ids[call, column]
        said = await check(bookie, caller, call, ledger_id, is_allowed)
        if said:
            wrong.append(f"{call} of {column} by {carrier}: {said}")
    return wrong + await joined_calls(bookie, callers["ledgers"], next(inside))


async def joined_calls(bookie: GuardedBookie, caller: RawBookie, inside: int) -> list[str]:
    """A request in one message with permitted ones, or after them in a stream, is no exception."""
    outside = next(bookie.ids)
    await prepare(bookie.admin, [inside, outside])
    requests = [add(inside, 1), add(outside, 1), add(inside, 2)]
    joined = pb.AddRequest(together=[one.SerializeToString() for one in requests])
    statuses: list[int] = []
    async with caller.stream("AddStream", pb.AddRequest, pb.AddResponse) as call:
        await call.write(joined)
        while len(statuses) < len(requests):
            answer = await call.read()
            parts = [pb.AddResponse.FromString(one) for one in answer.together] or [answer]
            statuses += [one.status for one in parts]
    wanted = [pb.STATUS_OK, pb.STATUS_NOT_PERMITTED, pb.STATUS_OK]
    found = await effect(bookie.admin, outside)
    return [] if (statuses, found) == (wanted, "") else [f"joined: {statuses}, left {found!r}"]


def metadata_of(ledger_id: int, log: str, bookie_id: str = "b1") -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id,
        ensemble_size=1,
        write_quorum_size=1,
        ack_quorum_size=1,
        state=LedgerState.OPEN,
        fragments=(Fragment(0, (bookie_id,)),),
        last_entry_id=NO_ENTRY,
        custom_metadata={LOG_TAG: f"{log} 0".encode()} if log else {},
    )


async def requests(bookie: GuardedBookie) -> list[str]:
    """Each HTTP path by each role; a caller with limits may ask, and change nothing."""
    wrong = []
    everything = list(cells(HTTP_TABLE)) + [
        (call, "ledgers", call.startswith("GET")) for call in rows(HTTP_TABLE)
    ]
    for call, column, is_allowed in everything:
        nobody = column == "anonymous"
        ways = {"c": ("" if nobody else column, ""), "t": ("client", bookie.token(column))}
        for way, (certificate, token) in ways.items():
            status, said = await bookie.http(call, certificate, token)
            problem = "" if (status == 200) is is_allowed else f"answered {status} {said}"
            if not is_allowed and (status != 403 or list(said) != ["error"]):
                problem = f"answered {status} {said}"
            _, report = await bookie.http("GET /bookie", "client")
            changed = report["read_only"] or report["garbage_suspended"]
            due = is_allowed and call in ("PUT /read-only", "PUT /garbage")
            if changed is not due:
                problem += f" changed: {changed}"
            if due:
                assert (await bookie.http(call, "client", undo=True))[0] == 200
            if problem:
                wrong.append(f"{call} of {column} by {way}: {problem}")
    return wrong


async def audited(bookie: GuardedBookie) -> None:
    """The log names each change over HTTP, all of them by an admin; no refused one is there."""
    changes = [call for call in rows(HTTP_TABLE) if call.startswith("PUT")]
    due = 2 * len(changes) + 4  # by certificate and by token; two of them are taken back each time
    async with asyncio.timeout(FOLLOWED_SECONDS_MAX):
        while len(did := changes_of(bookie.daemon)) < due:  # noqa: ASYNC110  (a log tells nobody)
            await asyncio.sleep(0.05)
    assert len(did) == due
    of_admin = [" ".join(what.split()[:2]) for who, what in did if who == "admin"]
    assert sorted(of_admin) == sorted(2 * changes)
    taken_back = [what for who, what in did if who == "client"]
    assert sorted(set(taken_back)) == [
        'PUT /garbage action="resume"',
        "PUT /read-only read_only=false",
    ]


def changes_of(daemon: Daemon) -> list[tuple[str, str]]:
    events = [json.loads(line) for line in daemon.lines]
    return [
        (one["who"], one["what"])
        for one in events
        if one["event"] == "audit_did" and one["what"].startswith("PUT")
    ]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_role_that_goes_in_an_open_stream(bookie: GuardedBookie, carrier: str) -> None:
    """The next request of a stream that stands is refused: adds, reads and a watch."""
    ledger_id = next(bookie.ids)
    await prepare(bookie.admin, [ledger_id])
    leaver = Grant("leaver", Role.WRITER)
    async with open_store(bookie.cluster.uri) as store:
        await RoleGrants(store).grant(leaver)
    writer = bookie.certificate("leaver", carrier)

    async def may_add() -> int:
        request = add(ledger_id, 0)
        return int((await writer.streamed("AddStream", request, pb.AddResponse)).status)

    await until_status(may_add, pb.STATUS_OK, FOLLOWED_SECONDS_MAX)
    async with (
        writer.stream("AddStream", pb.AddRequest, pb.AddResponse) as adds,
        writer.stream("ReadStream", pb.ReadRequest, pb.ReadResponse) as reads,
        writer.stream("WatchLac", pb.WatchLacRequest, pb.LacUpdate) as watch,
    ):
        await watch.write(pb.WatchLacRequest(subscribe=[ledger_id]))
        assert (await watch.read()).status == pb.STATUS_OK
        entry_ids = itertools.count(1)

        async def add_one() -> int:
            await adds.write(add(ledger_id, next(entry_ids)))
            return int((await adds.read()).status)

        async def read_one() -> int:
            request = pb.ReadRequest(ledger_id=ledger_id, last_entry_id=0, request_id=1)
            await reads.write(request)
            return int((await reads.read()).status)

        assert [await add_one(), await read_one()] == 2 * [pb.STATUS_OK]
        async with open_store(bookie.cluster.uri) as store:
            await RoleGrants(store).revoke("leaver", None, None)
        await until_status(add_one, pb.STATUS_NOT_PERMITTED, FOLLOWED_SECONDS_MAX)
        assert await read_one() == pb.STATUS_NOT_PERMITTED
        # The watch says so at the next change, and tells nothing of it.
        refused = next(entry_ids)
        await bookie.admin.streamed("AddStream", add(ledger_id, refused), pb.AddResponse)
        async with asyncio.timeout(FOLLOWED_SECONDS_MAX):
            update = await watch.read()
            while update.status == pb.STATUS_OK:
                assert update.max_lac < refused - 1
                update = await watch.read()
        assert (update.status, update.max_lac) == (pb.STATUS_NOT_PERMITTED, -1)
