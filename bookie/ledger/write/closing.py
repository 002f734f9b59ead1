"""Creates the errors that end a writer or that prevent the close of a ledger."""

from __future__ import annotations

from collections.abc import Sequence

from bookie.errors import (
    BookieError,
    LedgerClosedError,
    LedgerFencedError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    TooManyRequestsError,
)
from bookie.ledger.metadata import LedgerMetadata


def refusal_to_close(
    found: LedgerMetadata, last_add_confirmed: int, length: int
) -> BookieError | None:
    """Return None if `found` is closed at the writer's last entry and length, else an error.

    It does not matter who closed the ledger at this entry: another client, or this writer by an
    earlier request whose answer from the store was lost.

    Source: the BookKeeper protocol document, "Closing a ledger as a writer".
    """
    if not found.is_closed:
        return LedgerFencedError(f"ledger {found.ledger_id} is being recovered by another client")
    if (found.last_entry_id, found.length) == (last_add_confirmed, length):
        return None
    return LedgerClosedError(
        f"ledger {found.ledger_id} was closed by another client at entry {found.last_entry_id}, "
        f"our last confirmed entry is {last_add_confirmed}"
    )


def id_given_away(ledger_id: int) -> BookieError:
    """Return the error of a writer whose ledger was deleted, and whose ledger id was reused."""
    return NoSuchLedgerError(f"ledger {ledger_id} was deleted, and its id was given to another one")


def end_of_writer(error: BookieError, ledger_id: int) -> BookieError:
    """Return the error of all further calls to a writer that ended with `error`."""
    return _final(
        error, f"{error}; the writer of ledger {ledger_id} has ended, create another ledger"
    )


def ended_unsynced(error: BookieError, last_add_confirmed: int) -> BookieError:
    """Return the error of a close that is refused because confirmed entries are not synced."""
    return _final(
        error,
        f"entries after {last_add_confirmed} are written but not synced, so only a recovery may "
        f"close the ledger: {error}",
    )


def _final(error: BookieError, text: str) -> BookieError:
    final = type(error)(text)
    final.__dict__.update(vars(error))
    final.retryable = False
    final.__cause__ = error.__cause__
    return final


def no_ack_quorum(
    ledger_id: int, seconds: float, causes: Sequence[str], limit_spent: int = 0
) -> BookieError:
    """Return the error of a batch without an ack quorum in time; `causes` lists bookies' reasons.

    If the limit of ensemble changes per minute prevented a replacement, `limit_spent` is this
    limit; otherwise, it is 0.
    """
    reason = f"no ack quorum answered within {seconds:g} s ({'; '.join(causes)})"
    if limit_spent:
        reason += (
            f", and the limit of {limit_spent} ensemble changes a minute "
            "(client.changes_per_minute_max) was spent"
        )
    return NotEnoughBookiesError(f"ledger {ledger_id}: {reason}")


def rate_spent(
    ledger_id: int, bookie_id: str, seconds: float, retry_after_seconds: float, said: str
) -> BookieError:
    """Return the error of a batch that a bookie refused for `seconds` because of a rate limit.

    `said` is the message of the bookie's last answer.
    """
    return TooManyRequestsError(
        f"ledger {ledger_id}: {bookie_id} took nothing for {seconds:g} s "
        f"(client.rate_patience_seconds), because a rate is used up: {said}",
        retry_after_seconds=retry_after_seconds,
    )


def not_synced(ledger_id: int, last_add_confirmed: int) -> BookieError:
    """Return the error of a force that did not reach an ack quorum."""
    return NotEnoughBookiesError(
        f"ledger {ledger_id}: entries after {last_add_confirmed} could not be synced on an ack "
        "quorum"
    )
