"""Answers requests for stored data: entries, the last add confirmed, and listings.

The bookie denies an entry or ledger only if the bookie certainly does not store it. For a ledger in
limbo, or with reclaimed copies, the answer is UNKNOWN_LEDGER_STATE instead of a denial. A read of
an entry that is in the index but unreadable is an I/O error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from bookie.config import NodeSettings
from bookie.entry.digest import KEY_TAG_BYTES
from bookie.errors import BadRequestError, NoSuchLedgerError
from bookie.ids import MAX_ID, NO_ENTRY, Status
from bookie.ledger.quorum import EVERY_ID, Stripe
from bookie.node.engine.engine import Engine
from bookie.node.engine.format.arrays import IdRanges
from bookie.node.engine.ledger_state import LocalLedger
from bookie.node.engine.reader import ReadResult
from bookie.wire.commands import LacReply, LedgerRow, ReadCommand, ReadReply

LEDGERS_PER_PAGE = 1000

_UNKNOWN = Status.UNKNOWN_LEDGER_STATE, "this bookie may have lost entries of the ledger"
"""The answer that replaces a denial if the ledger is in doubt (in limbo, or with reclaimed
copies)."""


class EntryReads:
    """Reads the stored data of one engine; the caller has checked keys and fences."""

    def __init__(self, engine: Engine, settings: NodeSettings) -> None:
        self._engine = engine
        self._settings = settings

    def try_read(self, state: LocalLedger, command: ReadCommand) -> ReadReply | None:
        """Return the result of `read` for one entry that is in memory; otherwise None."""
        first = command.first_entry_id
        if not 0 <= first == command.last_entry_id <= MAX_ID or command.stripe_modulus:
            return None
        if state.deleted or not state.exists:
            return _negative_read(state, Status.NO_SUCH_LEDGER, "no such ledger", first)
        found = self._engine.read_one(state, first)
        if isinstance(found, ReadResult):
            return _reply(state, found)
        found.close()
        return None

    async def read(self, state: LocalLedger, command: ReadCommand) -> ReadReply:
        """Read the requested entries up to a limit or a missing entry; `command` must be valid."""
        first, last = command.first_entry_id, command.last_entry_id
        if state.deleted or not state.exists:
            wanted = _first_wanted(command)
            return _negative_read(state, Status.NO_SUCH_LEDGER, "no such ledger", wanted)
        if first == NO_ENTRY:
            result = await self._engine.read_last(state)
            # For a ledger in doubt, the last entry is unknown.
            if result is None or state.is_in_doubt:
                return _negative_read(
                    state, Status.NO_SUCH_ENTRY, "the ledger has no entry here", 0
                )
            return _reply(state, result)
        if first == last and not command.stripe_modulus:
            found = self._engine.read_one(state, first)
            result = found if isinstance(found, ReadResult) else await found
        else:
            entries_max, bytes_max = self._settings.read_entries_max, self._settings.read_bytes_max
            result = await self._engine.read(
                state,
                first,
                last,
                entries_max=min(command.max_entries or entries_max, entries_max),
                bytes_max=min(command.max_bytes or bytes_max, bytes_max),
                stripe=_stripe(command),
            )
        return _reply(state, result)

    async def read_lac(self, state: LocalLedger) -> LacReply:
        """Return facts about the ledger's end; for a ledger in doubt, only the LAC and fence."""
        reply = await self._engine.read_lac(state)
        if state.is_in_doubt and reply.status is not Status.IO_ERROR:
            return LacReply(*_UNKNOWN, max_lac=reply.max_lac, fenced=reply.fenced)
        return reply

    async def entries(self, state: LocalLedger, first: int, last: int) -> AsyncIterator[IdRanges]:
        """Yield ranges of stored ids from `first` to `last`; `last` -1 means the ledger's end.

        Raises:
            NoSuchLedgerError: the ledger was deleted here, or this bookie never knew the ledger.
            BadRequestError: the range is invalid.
            CorruptionError: the listing cannot be completed.
        """
        if first < 0 or not (last == NO_ENTRY or first <= last <= MAX_ID):
            raise BadRequestError(f"{first} to {last} is not a range of entry ids")
        if state.deleted or not state.exists:
            raise NoSuchLedgerError(f"ledger {state.ledger_id} is not stored here")
        end = MAX_ID if last == NO_ENTRY else last
        async for ranges in self._engine.entry_ranges(state, first, end):
            yield ranges

    async def ledgers(self, after: int) -> AsyncIterator[list[LedgerRow]]:
        """Yield lists of rows, one row for each ledger stored here with an id above `after`.

        The ids are in ascending order over all lists. No list is empty.
        """
        while True:
            page, after = await self._engine.ledgers(after, LEDGERS_PER_PAGE)
            rows = [
                LedgerRow(
                    ledger_id=item.ledger_id,
                    fenced=item.row.fenced,
                    limbo=item.row.limbo,
                    first_entry_id=item.row.first_entry_id,
                    last_entry_id=item.row.last_entry_id,
                    entries=item.row.entries,
                    payload_bytes=item.row.payload_bytes,
                    max_lac=item.row.max_lac,
                    key_tag=(item.row.key_digest or b"")[:KEY_TAG_BYTES],
                )
                for item in page
            ]
            if rows:
                yield rows
            if after == MAX_ID:
                return


def _reply(state: LocalLedger, result: ReadResult) -> ReadReply:
    following = min(result.next_entry_id, MAX_ID)
    if result.batch is None and result.stopped_by is not Status.OK:
        if result.stopped_by is Status.NO_SUCH_ENTRY:
            return _negative_read(state, result.stopped_by, result.message, following)
        return ReadReply(result.stopped_by, result.message, None, following, result.stopped_by)
    stopped_by = result.stopped_by
    if stopped_by is Status.NO_SUCH_ENTRY and state.is_in_doubt:
        stopped_by = Status.UNKNOWN_LEDGER_STATE
    return ReadReply(Status.OK, "", result.batch, following, stopped_by, state.max_lac)


def _negative_read(state: LocalLedger, status: Status, message: str, following: int) -> ReadReply:
    if state.is_in_doubt:
        status, message = _UNKNOWN
    return ReadReply(status, message, None, following, status, state.max_lac)


def problem_of(command: ReadCommand) -> str:
    """Return the reason why the request is invalid, in one sentence; empty if it is valid."""
    first, last = command.first_entry_id, command.last_entry_id
    if not 0 <= command.ledger_id <= MAX_ID:
        return f"ledger id {command.ledger_id} is out of range"
    if command.max_entries < 0 or command.max_bytes < 0:
        return "a limit must not be negative"
    if first == NO_ENTRY:
        return ""
    if not 0 <= first <= last <= MAX_ID:
        return f"{first} to {last} is not a range of entry ids"
    modulus = command.stripe_modulus
    if modulus and not (
        0 <= command.stripe_first_residue < modulus and 0 < command.stripe_count <= modulus
    ):
        return "the stripe needs 0 <= first residue < modulus and 0 < count <= modulus"
    if modulus > STRIPE_MODULUS_MAX:
        return f"a stripe modulus is at most {STRIPE_MODULUS_MAX}"
    return ""


STRIPE_MODULUS_MAX = 1024
"""The largest stripe modulus: above any ensemble size, to limit the ids that one read examines."""


def _first_wanted(command: ReadCommand) -> int:
    """Return the first wanted id; 0 if the ledger's last entry is wanted."""
    first = max(command.first_entry_id, 0)
    return min(_stripe(command).next_id(first), MAX_ID)


def _stripe(command: ReadCommand) -> Stripe:
    if not command.stripe_modulus or command.first_entry_id == NO_ENTRY:
        return EVERY_ID
    return Stripe(command.stripe_modulus, command.stripe_first_residue, command.stripe_count)
