"""Moves copies from fuller bookies to emptier bookies, once, on an operator's command.

Each move is a `ReplicaMove` under the ledger's repair lock. So after an interrupted command, every
ledger has all its copies. A repeated command makes a new plan from the present metadata. A bookie
whose copy was moved away removes the copy later (`Reclaimer`).

The command skips a marked ledger, because its missing copies must be restored first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bookie.cluster import keys
from bookie.env import gather
from bookie.env.pace import Pace
from bookie.errors import BadRequestError, BookieError, MetadataError
from bookie.ledger.copies.departures import Departures
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.copies.rebalance_plan import Device, MayPlace, RebalancePlan, SlotMove, add_sizes
from bookie.ledger.copies.replica_move import ReplicaMove
from bookie.ledger.copies.replica_repair import RepairOutcome
from bookie.ledger.ledger_client import LedgerClient
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.place.policy import Placement
from bookie.metadata.store import MetadataStore
from bookie.telemetry import event_log

LEDGERS_AT_ONCE = 4

_log = event_log(__name__)


@dataclass(slots=True)
class BookieBytes:
    """The estimated bytes of one bookie: before the moves, given to others, taken from others."""

    before: int
    given: int = 0
    taken: int = 0


@dataclass(slots=True)
class RebalanceReport:
    """The numbers and bytes of the moves that were made, or only planned with `dry_run`."""

    bookies: dict[str, BookieBytes]
    moves: int = 0
    failed: int = 0
    is_balanced: bool = False
    """True if every writable bookie is balanced after the moves (see `rebalance_plan`)."""

    def count(self, move: SlotMove) -> None:
        self.moves += 1
        self.bookies[move.former].given += move.size_bytes
        self.bookies[move.newcomer].taken += move.size_bytes


class Rebalance:
    """One rebalance of a cluster.

    Args:
        client: calls the bookies, and reads and writes ledger metadata.
        store: the metadata store of the cluster.
        worker: the name of this process in its locks.
        bytes_per_second_max: the greatest number of bytes to copy per second; 0 means no limit.
        on_failure: called with the outcome of each move that failed.
    """

    def __init__(
        self,
        client: LedgerClient,
        store: MetadataStore,
        worker: str,
        bytes_per_second_max: int,
        on_failure: Callable[[RepairOutcome], None],
    ) -> None:
        self._client = client
        self._store = store
        self._worker = worker
        self._move = ReplicaMove(client, Pace(lambda: bytes_per_second_max))
        self._on_failure = on_failure

    async def run(self, *, dry_run: bool = False) -> RebalanceReport:
        """Plan moves; without `dry_run`, also try each move once, and then return the report.

        Raises:
            BadRequestError: repair is disabled, or fewer than two bookies are writable.
            MetadataError: the metadata store failed; the operator may repeat the command.
        """
        async with UnderreplicationManager(self._store, self._worker) as marks:
            await _require_enabled(marks)
            plan = await self._plan()
            marked = {mark.ledger_id async for mark in marks.marked()}
            report = RebalanceReport(
                {name: BookieBytes(size) for name, size in sorted(plan.sizes.items())}
            )
            batch: list[list[SlotMove]] = []
            async for found in self._client.ledgers.list_readable(lambda _: None):
                if plan.is_balanced:
                    break
                if found.value.ledger_id in marked or not (moves := plan.moves_of(found.value)):
                    continue
                if dry_run:
                    for move in moves:
                        report.count(move)
                    continue
                batch.append(moves)
                if len(batch) == LEDGERS_AT_ONCE:
                    await self._make(batch, marks, plan, report)
                    batch = []
            await self._make(batch, marks, plan, report)
        report.is_balanced = plan.is_balanced
        return report

    async def _plan(self) -> RebalancePlan:
        directory = self._client.directory
        leaving = await Departures(self._store, keys.LEAVING_BOOKIES).names()
        writable = set(directory.bookies()) - leaving
        if len(writable) < 2:
            raise BadRequestError("fewer than two bookies are writable, so no copy can move")
        sizes = dict.fromkeys(set(directory.all()) - leaving, 0)
        async for found in self._client.ledgers.list_readable(lambda _: None):
            add_sizes(sizes, found.value)
        devices = {
            name: Device(one.total_bytes, one.free_bytes)
            for name, one in directory.all().items()
            if one.total_bytes
        }
        may_place = placed_by(self._client.ensembles.placement.now())
        return RebalancePlan(sizes, writable, may_place, devices)

    async def _make(
        self,
        batch: Sequence[Sequence[SlotMove]],
        marks: UnderreplicationManager,
        plan: RebalancePlan,
        report: RebalanceReport,
    ) -> None:
        """Make the moves of several ledgers concurrently."""
        if not batch:
            return
        await _require_enabled(marks)

        async def make(moves: Sequence[SlotMove]) -> None:
            for move, outcome in zip(moves, await self._make_one(moves, marks), strict=True):
                if outcome.outcome == "repaired":
                    report.count(move)
                    continue
                plan.undo(move)
                if not outcome.is_whole:
                    report.failed += 1
                    self._on_failure(outcome)

        await gather(map(make, batch))

    async def _make_one(
        self, moves: Sequence[SlotMove], marks: UnderreplicationManager
    ) -> list[RepairOutcome]:
        """Make the moves of one ledger under its lock; return one outcome for each move."""
        ledger_id = moves[0].ledger_id
        outcomes: list[RepairOutcome] = []
        try:
            if not await marks.acquire_unmarked(ledger_id):
                detail = "it is under repair, or waits for repair"
                return [RepairOutcome(ledger_id, m.former, "locked", detail=detail) for m in moves]
            try:
                lock = marks.lock_of(ledger_id)
                for move in moves:
                    outcome = await self._move.exchange(
                        ledger_id, move.first_entry_id, move.former, move.newcomer, lock
                    )
                    outcomes.append(outcome)
            finally:
                await marks.release(ledger_id)
        except MetadataError:
            raise
        except Exception as error:  # noqa: BLE001  (one ledger's error must not stop all repair)
            detail = str(error)
            if not isinstance(error, BookieError):
                detail = f"{type(error).__name__}: {error}"
                _log.error("rebalance_crashed", error, ledger_id=ledger_id)
            left = moves[len(outcomes) :]
            outcomes += [
                RepairOutcome(ledger_id, one.former, "refused", detail=detail) for one in left
            ]
        return outcomes


def placed_by(placement: Placement) -> MayPlace:
    """Return a check that refuses a move if a write set would then span fewer failure domains."""

    def may_place(
        metadata: LedgerMetadata, bookies: Sequence[str], slot: int, newcomer: str
    ) -> bool:
        size = metadata.write_quorum_size
        found = placement.newcomers(
            bookies, [slot], [newcomer], pick=lambda _: 0, write_quorum_size=size
        )
        if found != {slot: newcomer}:
            return False
        after = [*bookies[:slot], newcomer, *bookies[slot + 1 :]]
        before = placement.spans(bookies, size)
        return all(
            now >= then for now, then in zip(placement.spans(after, size), before, strict=True)
        )

    return may_place


async def _require_enabled(marks: UnderreplicationManager) -> None:
    if not await marks.is_enabled():
        raise BadRequestError("repair is disabled in this cluster; enable it first")
