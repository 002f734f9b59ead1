"""Ways in which a bookie breaks its word (C16). See `ledger_corruptions`."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from tests.ledger_history.ledger_corruptions import (
    INVENTED,
    LATE,
    LEDGER_CORRUPTIONS,
    must_break,
    one_of,
)
from tests.ledger_history.ledger_events import BookieEvent, BookieEventKind, LedgerHistory

__all__ = ["LEDGER_CORRUPTIONS"]

Kind = BookieEventKind


def _of_kind(history: LedgerHistory, *kinds: BookieEventKind) -> list[BookieEvent]:
    """Events of ledgers and bookies of which nothing was destroyed or deleted."""
    destroyed = {one.bookie_id for one in history.bookie_events if one.kind is Kind.DISK_DESTROYED}
    deleted = {one.ledger_id for one in history.bookie_events if one.kind is Kind.LEDGER_DELETED}
    return [
        one
        for one in history.bookie_events
        if one.kind in kinds and one.bookie_id not in destroyed and one.ledger_id not in deleted
    ]


def _then(
    history: LedgerHistory, like: BookieEvent, kinds: Iterable[BookieEventKind], epochs: int = 0
) -> LedgerHistory:
    """More events of the bookie, ledger and entry of `like`, at the end of the history."""
    epoch = epochs + max(
        one.epoch for one in history.bookie_events if one.bookie_id == like.bookie_id
    )
    more = tuple(
        replace(like, kind=kind, epoch=epoch, index=LATE + number)
        for number, kind in enumerate(kinds)
    )
    return replace(history, bookie_events=(*history.bookie_events, *more))


def _without(history: LedgerHistory, gone: Iterable[BookieEvent]) -> LedgerHistory:
    indexes = {one.index for one in gone}
    kept = tuple(one for one in history.bookie_events if one.index not in indexes)
    return replace(history, bookie_events=kept)


ADD = (Kind.ACCEPT, Kind.SYNC_BEGIN, Kind.SYNC_END, Kind.ADD_ACK)


@must_break("C16")
def an_ack_comes_before_the_sync(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    ack = one_of(rng, _of_kind(history, Kind.ADD_ACK))
    if ack is None:
        return None
    before = [
        one
        for one in history.bookie_events
        if one.bookie_id == ack.bookie_id
        and one.kind in (Kind.SYNC_BEGIN, Kind.SYNC_END)
        and one.index < ack.index
        and one.epoch == ack.epoch
    ]
    accepted = any(
        one.kind is Kind.ACCEPT
        and (one.bookie_id, one.ledger_id, one.entry_id, one.epoch)
        == (ack.bookie_id, ack.ledger_id, ack.entry_id, ack.epoch)
        for one in history.bookie_events
    )
    return _without(history, before) if accepted else None


@must_break("C16")
def a_sync_began_before_the_accept(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    ack = one_of(rng, _of_kind(history, Kind.ADD_ACK))
    if ack is None:
        return None
    fresh = replace(ack, entry_id=5000)
    kinds = (Kind.SYNC_BEGIN, Kind.ACCEPT, Kind.SYNC_END, Kind.RECOVERY_ADD_ACK)
    return _then(history, fresh, kinds)


@must_break("C16")
def an_ack_has_no_accept(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    ack = one_of(rng, _of_kind(history, Kind.ADD_ACK))
    if ack is None:
        return None
    return _then(history, replace(ack, entry_id=5000), (Kind.RECOVERY_ADD_ACK,))


@must_break("C16")
def a_crash_excuses_no_ack_without_a_sync(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    ack = one_of(rng, _of_kind(history, Kind.ADD_ACK))
    if ack is None:
        return None
    kinds = (Kind.START, Kind.ACCEPT, Kind.RECOVERY_ADD_ACK)
    return _then(history, replace(ack, entry_id=5000), kinds, epochs=1)


@must_break("C16")
def a_fenced_ledger_takes_an_add(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    fence = one_of(rng, _of_kind(history, Kind.FENCE_ACK))
    return None if fence is None else _then(history, replace(fence, entry_id=5000), ADD)


@must_break("C16")
def a_restart_forgets_the_fence(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    fence = one_of(rng, _of_kind(history, Kind.FENCE_ACK))
    if fence is None:
        return None
    return _then(history, replace(fence, entry_id=5000), (Kind.START, *ADD), epochs=1)


@must_break("C16")
def a_denied_entry_is_taken(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    denial = one_of(rng, _of_kind(history, Kind.NO_SUCH_ENTRY_FENCING))
    return None if denial is None else _then(history, denial, ADD)


@must_break("C16")
def an_acknowledged_entry_is_denied(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    ack = one_of(rng, _of_kind(history, Kind.ADD_ACK, Kind.RECOVERY_ADD_ACK))
    return None if ack is None else _then(history, ack, (Kind.NO_SUCH_ENTRY,))


@must_break("C16")
def a_restart_forgets_an_entry(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    ack = one_of(rng, _of_kind(history, Kind.ADD_ACK, Kind.RECOVERY_ADD_ACK))
    if ack is None:
        return None
    return _then(history, ack, (Kind.START, Kind.NO_SUCH_ENTRY_FENCING), epochs=1)


@must_break("C16")
def a_failed_sync_is_ignored(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    ack = one_of(rng, _of_kind(history, Kind.RECOVERY_ADD_ACK))
    return None if ack is None else _then(history, ack, (Kind.SYNC_ERROR, Kind.RECOVERY_ADD_ACK))


@must_break("C16")
def two_payloads_are_acknowledged(
    history: LedgerHistory, rng: random.Random
) -> LedgerHistory | None:
    ack = one_of(rng, _of_kind(history, Kind.ADD_ACK, Kind.RECOVERY_ADD_ACK))
    if ack is None:
        return None
    return _then(history, replace(ack, digest=INVENTED), (Kind.RECOVERY_ADD_ACK,))


@must_break("C16")
def an_old_life_goes_on(history: LedgerHistory, rng: random.Random) -> LedgerHistory | None:
    event = one_of(rng, _of_kind(history, Kind.FENCE_ACK))
    return None if event is None else _then(history, event, (Kind.FENCE_ACK,), epochs=-1)
