"""The present end of an open ledger: the highest LAC that its bookies can prove."""

from __future__ import annotations

from bookie.entry.digest import Digester
from bookie.errors import BookieError, NotEnoughBookiesError, error_for_status
from bookie.ids import NO_ENTRY, Status
from bookie.ledger.connection.calls import Calls
from bookie.ledger.connection.pool import BookiePool
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.quorum import Quorum
from bookie.ledger.read.verification import VerifiedLac, verify_lac

_CALLER_TO_BLAME = frozenset({Status.WRONG_CLUSTER, Status.BAD_REQUEST})


async def ask_lac(
    pool: BookiePool, metadata: LedgerMetadata, slot: int, digester: Digester
) -> tuple[int, VerifiedLac]:
    """The LAC that the bookie in `slot` proves; a failed call is an answer, too."""
    connection = pool.connection(metadata.last_fragment.bookies[slot])
    try:
        reply = await connection.channel().read_lac(
            metadata.ledger_id, metadata.password_key, timeout=pool.settings.read_timeout_seconds
        )
    except BookieError as error:
        return slot, VerifiedLac(error.status, message=str(error))
    return slot, verify_lac(metadata.ledger_id, reply, digester)


async def read_lac(pool: BookiePool, metadata: LedgerMetadata, digester: Digester) -> int:
    """The highest LAC among bookies that cover the last ensemble; -1 if none knows one.

    The writer had acknowledged at least these entries, and perhaps more. Returns as soon as the
    answers suffice.

    Raises:
        NotEnoughBookiesError: too few bookies answered.
        WrongClusterError: a bookie refused the caller.
        ClientClosedError: the client was closed meanwhile.
    """
    quorum = Quorum(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    answered, lac, silence = 0, NO_ENTRY, ""
    async with Calls[tuple[int, VerifiedLac]]() as calls:
        for slot in range(metadata.ensemble_size):
            calls.start(
                ask_lac(pool, metadata, slot, digester), name=f"LAC of {metadata.ledger_id}"
            )
        for _ in range(metadata.ensemble_size):
            slot, answer = await calls.next()
            if answer.status in _CALLER_TO_BLAME:
                # The calls of a client that is closed end as if they were wrong.
                pool.require_open()
                raise error_for_status(answer.status, answer.message)
            if answer.status is Status.OK or answer.status.is_definite_negative:
                answered |= 1 << slot
                lac = max(lac, answer.last_add_confirmed)
                if quorum.covers(answered):
                    return lac
            else:
                silence = answer.message or answer.status.name
    raise NotEnoughBookiesError(
        f"too few bookies of ledger {metadata.ledger_id} answered to tell where it ends: {silence}"
    )
