"""Commands to a running bookie over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import aiohttp
import pytest

from bookie.addresses import join_address
from bookie.daemon.http import Administration, is_same_machine, serve_http
from bookie.daemon.readiness import Readiness
from bookie.errors import BadRequestError, DiskFullError
from bookie.node.bookie import Bookie
from bookie.node.garbage import GarbageCollector, GarbageStatus
from bookie.node.read_only_switch import ReadOnlySwitch
from bookie.telemetry import Metrics
from bookie.wire.commands import Info

NAMED = {"Bookie-Id": "b1", "Bookie-Instance-Id": "c1"}


def named_session(port: int, host: str = "127.0.0.1") -> aiohttp.ClientSession:
    """Requests to a server, each for bookie b1 of cluster c1 unless it says otherwise."""
    return aiohttp.ClientSession(f"http://{join_address(host, port)}", headers=NAMED)


class _Bookie:
    """A bookie that only remembers its reasons."""

    def __init__(self) -> None:
        self.reasons: set[str] = set()

    @property
    def read_only(self) -> bool:
        return bool(self.reasons)

    def read_only_reasons(self) -> list[str]:
        return sorted(self.reasons)

    async def info(self) -> Info:
        return Info("b1", "c1", "0", self.read_only, 10, 5, 3)


class _Switch:
    """A switch of such a bookie, which may break."""

    def __init__(self, bookie: _Bookie) -> None:
        self._bookie = bookie
        self.persists = self.is_broken = False

    async def set(self, *, read_only: bool, persist: bool = False) -> None:
        if self.is_broken:
            raise DiskFullError("the switch could not be kept")
        self.persists = read_only and (persist or self.persists)
        (self._bookie.reasons.add if read_only else self._bookie.reasons.discard)("command")


def _switched() -> tuple[Administration, _Bookie, _Switch]:
    administration, bookie = Administration("b1"), _Bookie()
    switch = _Switch(bookie)
    administration.bookie = cast("Bookie", bookie)
    administration.switch = cast("ReadOnlySwitch", switch)
    return administration, bookie, switch


async def test_a_switch_that_persists() -> None:
    """The answer says so; what cannot be kept, or makes no sense, changes nothing."""
    administration, bookie, switch = _switched()
    async with (
        serve_http(Metrics(), Readiness(), administration, host="127.0.0.1", port=0) as port,
        named_session(port) as session,
    ):
        for change, persists in (
            ({"read_only": True}, False),
            ({"read_only": True, "persist": True}, True),
            ({"read_only": True, "persist": False}, True),
            ({"read_only": False}, False),
        ):
            async with session.put("/read-only", json=change) as response:
                answer = await response.json()
                assert response.status == 200
                assert answer["read_only_persists"] is persists
        for wrong in (
            {"read_only": True, "persist": "yes"},
            {"read_only": True, "persist": 1},
            {"read_only": False, "persist": True},
            {"persist": True},
        ):
            async with session.put("/read-only", json=wrong) as response:
                assert response.status == 400
        switch.is_broken = True
        async with session.put("/read-only", json={"read_only": True, "persist": True}) as response:
            assert response.status == 409
            assert (await response.json())["error"] == "the switch could not be kept"
        assert not bookie.read_only


async def test_read_only_by_command_and_back() -> None:
    """The switch holds until it is taken back, and the answer says why."""
    administration, bookie, _ = _switched()
    async with (
        serve_http(Metrics(), Readiness(), administration, host="127.0.0.1", port=0) as port,
        named_session(port) as session,
    ):
        async with session.put("/read-only", json={"read_only": True}) as response:
            answer = await response.json()
            assert (answer["read_only"], answer["read_only_reasons"]) == (True, ["command"])
        assert bookie.read_only
        async with session.put("/read-only", json={"read_only": False}) as response:
            assert (await response.json())["read_only"] is False
        async with session.get("/bookie") as response:
            assert (await response.json())["ledgers"] == 3


class _Reclaiming:
    """A collector that only remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.suspended = False

    def status(self) -> GarbageStatus:
        return GarbageStatus(
            self.suspended, "too many", "stopped", 7, 5, 1, None, 1, False, 2, 3, 4
        )

    def wake(self, *, force: bool = False) -> None:
        self.asked.append("force" if force else "run")

    async def confirm_store(self) -> None:
        if "confirm-store" in self.asked:
            raise BadRequestError("the metadata store is not in doubt")
        self.asked.append("confirm-store")

    async def keep(self, ledger_ids: Iterable[int] = ()) -> int:
        self.asked.append(f"undelete {list(ledger_ids)}")
        return 5

    def suspend(self, *, suspended: bool) -> None:
        self.suspended = suspended

    def compact(self) -> None:
        self.asked.append("compact")


async def test_garbage_and_compaction_by_command() -> None:
    """Each action reaches the collector; the answer says how reclaiming stands."""
    administration, reclaiming = Administration("b1"), _Reclaiming()
    administration.bookie = cast("Bookie", _Bookie())
    administration.reclaiming = cast("GarbageCollector", reclaiming)
    async with (
        serve_http(Metrics(), Readiness(), administration, host="127.0.0.1", port=0) as port,
        named_session(port) as session,
    ):
        for action in ("run", "force", "suspend"):
            async with session.put("/garbage", json={"action": action}) as response:
                answer = await response.json()
                assert answer["garbage_suspended"] is (action == "suspend")
                assert answer["garbage_stopped"] == "too many"
        async with session.put("/garbage", json={"action": "resume"}) as response:
            assert (await response.json())["garbage_suspended"] is False
        async with session.put("/compaction", json={"action": "run"}) as response:
            assert (await response.json())["compacted_files"] == 2
        for path, action in (("garbage", "burn"), ("compaction", "force")):
            async with session.put(f"/{path}", json={"action": action}) as response:
                assert response.status == 400
        assert reclaiming.asked == ["run", "force", "compact"]


async def test_a_store_is_confirmed_and_ledgers_are_kept_by_command() -> None:
    """An impossible action is refused with its reason."""
    administration, reclaiming = Administration("b1"), _Reclaiming()
    administration.bookie = cast("Bookie", _Bookie())
    administration.reclaiming = cast("GarbageCollector", reclaiming)
    async with (
        serve_http(Metrics(), Readiness(), administration, host="127.0.0.1", port=0) as port,
        named_session(port) as session,
    ):
        async with session.put("/garbage", json={"action": "confirm-store"}) as response:
            assert response.status == 200
        async with session.put("/garbage", json={"action": "confirm-store"}) as response:
            assert response.status == 409
            assert await response.json() == {"error": "the metadata store is not in doubt"}
        chosen: tuple[dict[str, list[int]], ...] = ({}, {"ledgers": [7, 2**63 - 1]})
        for body in chosen:
            async with session.put("/garbage", json={"action": "undelete"} | body) as response:
                answer = await response.json()
                assert (answer["undeleted_ledgers"], answer["garbage_waiting_ledgers"]) == (5, 5)
        for wrong in (7, ["7"], [True], [-1], [2**63], None):
            refused = {"action": "undelete", "ledgers": wrong}
            async with session.put("/garbage", json=refused) as response:
                assert response.status == 400
    kept = [f"undelete {ids}" for ids in ([], [7, 2**63 - 1])]
    assert reclaiming.asked == ["confirm-store", *kept]


async def test_bad_commands_change_nothing() -> None:
    """Bodies that are not JSON, wrong ones and forms are refused.

    So is every command once the bookie is gone.
    """
    administration, bookie = Administration("b1"), _Bookie()
    async with (
        serve_http(Metrics(), Readiness(), administration, host="127.0.0.1", port=0) as port,
        named_session(port) as session,
    ):
        async with session.get("/bookie") as response:
            assert response.status == 503
        administration.bookie = cast("Bookie", bookie)
        async with session.put("/read-only", data={"read_only": "true"}) as response:
            assert response.status == 403
        for body in ({"read_only": 1}, {}, [True]):
            async with session.put("/read-only", json=body) as response:
                assert response.status == 400
        json_type = {"Content-Type": "application/json"}
        async with session.put("/read-only", data=b"\xff{", headers=json_type) as response:
            assert response.status == 400
    assert not bookie.read_only


class _Work:
    """Work that only counts how often it was started."""

    def __init__(self) -> None:
        self.starts = 0

    def start(self) -> None:
        self.starts += 1

    def status(self) -> dict[str, object]:
        return {"needed": True, "running": bool(self.starts), "report": None}


async def test_upkeep_is_started_by_command_and_shown() -> None:
    """Whoever asks may see it, only a command of this machine starts it."""
    administration, work = Administration("b1"), _Work()
    async with (
        serve_http(Metrics(), Readiness(), administration, host="127.0.0.1", port=0) as port,
        named_session(port) as session,
    ):
        async with session.get("/check") as response:
            assert response.status == 503
        administration.upkeep = {"check": work}
        async with session.put("/check", data={"now": "true"}) as response:
            assert response.status == 403
        async with session.get("/check") as response:
            assert (await response.json())["running"] is False
        async with session.put("/check", json={}) as response:
            assert (await response.json())["running"] is True
        assert work.starts == 1


ADMINISTERED: tuple[tuple[str, str, dict[str, object] | None], ...] = (
    ("GET", "/bookie", None),
    ("GET", "/check", None),
    ("GET", "/scrub", None),
    ("PUT", "/read-only", {"read_only": True}),
    ("PUT", "/garbage", {"action": "force"}),
    ("PUT", "/compaction", {"action": "run"}),
    ("PUT", "/check", {}),
    ("PUT", "/scrub", {}),
)
"""Every request about a bookie: method, path, body."""


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        (
            {"Bookie-Id": "b2"},
            "this is bookie b1, and the request is for bookie b2; "
            "run the command on the machine of bookie b2",
        ),
        (
            {"Bookie-Instance-Id": "c2"},
            "this is bookie b1 of cluster c1, not of cluster c2; "
            "run the command on the machine of the bookie that you mean",
        ),
    ],
)
async def test_a_request_for_another_bookie_is_refused(
    named: dict[str, str], sentence: str
) -> None:
    """Nothing is shown and nothing changes: an address may lead to the wrong bookie."""
    administration, bookie, reclaiming, work = _administered()
    async with (
        serve_http(Metrics(), Readiness(), administration, host="127.0.0.1", port=0) as port,
        named_session(port) as session,
    ):
        for method, path, body in ADMINISTERED:
            async with session.request(method, path, json=body, headers=named) as response:
                assert (response.status, await response.json()) == (421, {"error": sentence})
    assert (bookie.read_only, reclaiming.asked, work.starts) == (False, [], 0)


async def test_a_change_names_its_bookie_and_a_look_need_not() -> None:
    """An operator looks with a browser; a change without a name could meet anybody."""
    administration, bookie, reclaiming, work = _administered()
    async with (
        serve_http(Metrics(), Readiness(), administration, host="127.0.0.1", port=0) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        for method, path, body in ADMINISTERED:
            async with session.request(method, path, json=body) as response:
                assert response.status == (200 if method == "GET" else 400), (method, path)
                if method == "PUT":
                    assert "Bookie-Id" in (await response.json())["error"]
        assert (bookie.read_only, reclaiming.asked, work.starts) == (False, [], 0)
        # The cluster's id is known only to who asks the metadata store.
        body, named = {"read_only": True}, {"Bookie-Id": "b1"}
        async with session.put("/read-only", json=body, headers=named) as response:
            assert response.status == 200
    assert bookie.read_only


@pytest.mark.parametrize(
    ("listen", "reached"),
    [
        ("0.0.0.0", "127.0.0.1"),
        # Every address of 127.0.0.0/8 is this machine's.
        ("0.0.0.0", "127.0.0.2"),
        ("::1", "::1"),
        ("::", "::1"),
        ("::", "127.0.0.1"),
    ],
)
async def test_a_change_from_this_machine_is_taken_on_every_address(
    listen: str, reached: str
) -> None:
    """A wildcard is both families, as it is for gRPC."""
    administration, bookie, _, _ = _administered()
    async with (
        serve_http(Metrics(), Readiness(), administration, host=listen, port=0) as port,
        named_session(port, reached) as session,
        session.put("/read-only", json={"read_only": True}) as response,
    ):
        assert response.status == 200
    assert bookie.read_only


@pytest.mark.parametrize(
    ("peer", "own", "local"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.2", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("172.17.0.2", "172.17.0.2", True),
        ("::ffff:172.17.0.2", "::ffff:172.17.0.2", True),
        ("fe80::2%eth0", "fe80::2%eth0", True),
        ("172.17.0.1", "172.17.0.2", False),
        ("::ffff:172.17.0.1", "::ffff:172.17.0.2", False),
        ("fe80::1", "fe80::2", False),
        ("", "", False),
        (None, None, False),
    ],
)
def test_a_peer_with_the_address_that_it_reached_is_this_machine(
    peer: str | None, own: str | None, local: bool
) -> None:
    assert is_same_machine(peer, own) is local


def _administered() -> tuple[Administration, _Bookie, _Reclaiming, _Work]:
    """Bookie b1 of cluster c1, and what the commands would change."""
    administration, bookie, _ = _switched()
    reclaiming, work = _Reclaiming(), _Work()
    administration.instance_id = "c1"
    administration.reclaiming = cast("GarbageCollector", reclaiming)
    administration.upkeep = {"check": work, "scrub": work}
    return administration, bookie, reclaiming, work
