"""Checks the health of a cluster: its bookies, the copies of its ledgers, and its repairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bookie.cluster.directory import BookieDirectory
from bookie.cluster.instance import ClusterStatus, read_status
from bookie.config import SecuritySettings
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.copies.departures import RepairFailures
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.metadata.store import MetadataStore
from bookie.repair.comparison import CopyComparison, ListedFinding, listed_bookies
from bookie.wire.grpc.credentials import ChannelSecurity


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One fact about a cluster; `count` is None if the fact is unknown."""

    name: str
    healthy: bool
    count: int | None
    found: str


async def check_cluster(
    store: MetadataStore,
    *,
    is_deep: bool,
    answer_seconds: float,
    security: SecuritySettings | None = None,
) -> list[HealthCheck]:
    """Check a cluster: its bookies, every copy that the metadata requires, and its repairs.

    Args:
        store: the cluster's metadata store.
        is_deep: True lists the entries of every copy. False lists entries only of those copies that
            have too few entries.
        answer_seconds: the longest time that a bookie may need for each page of an answer.
        security: the client's settings for TLS.

    Raises:
        MetadataError: the store does not answer, or holds no cluster.
        FormatError: a key in the directory of the ledgers is not the key of a ledger.
    """
    status = await read_status(store)
    async with BookieDirectory(store) as directory:
        known = dict(directory.all())
    registered = {*status.writable, *status.read_only, *known}
    async with listed_bookies(
        registered, known, status.instance_id, answer_seconds, ChannelSecurity(security)
    ) as bookies:
        comparison = CopyComparison(LedgerManager(store), bookies, is_deep=is_deep)
        await comparison.run()
    silent = {name: one.problem for name, one in bookies.items() if one.problem}
    absent = {name: f"{found.ledgers} ({found})" for name, found in comparison.absent.items()}
    missing = {
        name: f"{one.missing.entries} entries ({one.missing})"
        for name, one in bookies.items()
        if one.missing.ledgers
    }
    limbo = {
        name: f"{one.limbo.ledgers} ({one.limbo})"
        for name, one in bookies.items()
        if one.limbo.ledgers
    }
    damaged, elsewhere = comparison.damaged, comparison.elsewhere
    return [
        *_checks_of_listed_bookies(status, registered),
        HealthCheck("bookies that do not answer", not silent, len(silent), _by_bookie(silent)),
        HealthCheck(
            "ledgers with damaged metadata",
            not damaged.ledgers,
            damaged.ledgers,
            str(damaged) if damaged.ledgers else "none",
        ),
        HealthCheck("ledgers on absent bookies", not absent, elsewhere.ledgers, _by_bookie(absent)),
        _unless_unknown("ledgers with missing copies", comparison.missing.ledgers, missing, silent),
        _unless_unknown("ledgers in limbo", comparison.limbo.ledgers, limbo, silent),
        *await _checks_of_repair(store),
    ]


async def _checks_of_repair(store: MetadataStore) -> list[HealthCheck]:
    """Check the repairs: find ledgers that wait for repair, and ledgers whose repair failed.

    The function reads only the records of repair in the metadata store, and asks no bookie.
    """
    marks = UnderreplicationManager(store)
    ledgers = await marks.ledgers()
    # A locked ledger without a mark is being moved or recovered, not repaired, so it does not count
    # here.
    locked = len(ledgers & await marks.locked())
    marked = len(ledgers)
    failing = ListedFinding()
    async for failure in RepairFailures(store).present(ledgers):
        failing.add(failure.ledger_id)
    waiting = "none"
    if marked:
        waiting = f"{marked}, {locked} of them under repair"
        if not await marks.is_enabled():
            waiting += "; repair is disabled: bookie repair enable"
    return [
        HealthCheck("ledgers that wait for repair", not marked, marked, waiting),
        HealthCheck(
            "ledgers whose repair fails",
            not failing.ledgers,
            failing.ledgers,
            f"{failing}: bookie repair list" if failing.ledgers else "none",
        ),
    ]


def _checks_of_listed_bookies(
    status: ClusterStatus, registered: Iterable[str]
) -> list[HealthCheck]:
    missing = sorted({*status.known} - {*registered})
    writable, read_only = len(status.writable), sorted(status.read_only)
    return [
        HealthCheck(
            "writable bookies", writable > 0, writable, f"{writable} of {len(status.known)}"
        ),
        HealthCheck("missing bookies", not missing, len(missing), ", ".join(missing) or "none"),
        HealthCheck(
            "read-only bookies", not read_only, len(read_only), ", ".join(read_only) or "none"
        ),
    ]


def _unless_unknown(
    name: str, count: int, found: Mapping[str, str], silent: Mapping[str, str]
) -> HealthCheck:
    """Return a check that needs an answer from every bookie; the check fails if one is silent."""
    sentence, unknown = _by_bookie(found), ", ".join(sorted(silent))
    if unknown:
        sentence += f"; unknown on {unknown}"
    return HealthCheck(name, not (count or unknown), None if unknown else count, sentence)


def _by_bookie(found: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {what}" for name, what in sorted(found.items())) or "none"
