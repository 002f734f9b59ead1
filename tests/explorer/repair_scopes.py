"""The worlds in which repair is explored."""

from __future__ import annotations

from dataclasses import replace

from tests.explorer.explored_world import Scope

_AUDITS = (("audit", "a1"), ("audit", "a2"))
_REPAIRS = (("repair", "r1"), ("repair", "r2"))
_MOVED = ("mark made", "entries copied", "swap done", "mark removed")

_CLOSED = Scope(begins_closed=True, closes=True, spares=1, recoverers=0)
_OPEN = Scope(closes=True, spares=2, changes=1, entries=2)

REPAIR_SCOPES = {
    "a lost bookie, two replicators, locks are lost": replace(
        _CLOSED,
        losses=1,
        expiries=1,
        workers=(_AUDITS[0], *_REPAIRS),
        shows=(*_MOVED, "lock lost", "swap refused", "lost bookie rejoined"),
    ),
    "a lost bookie, answers do not come": replace(
        _CLOSED,
        losses=1,
        cuts=1,
        workers=(_AUDITS[0], *_REPAIRS),
        shows=(*_MOVED, "late transaction of repair done", "late add done"),
    ),
    "a wiped bookie, two audits": replace(
        _CLOSED,
        spares=0,
        wipes=1,
        expiries=1,
        workers=(*_AUDITS, _REPAIRS[0]),
        shows=("mark made", "entries copied", "mark removed", "lock lost"),
    ),
    "a newcomer loses its copies": replace(
        _CLOSED,
        losses=1,
        wipes=1,
        workers=(*_AUDITS, _REPAIRS[0]),
        shows=(*_MOVED, "swap refused", "copy refused by another incarnation"),
    ),
    "an old self takes copies": replace(
        _CLOSED,
        losses=1,
        wipes=1,
        old_selves=True,
        workers=(_AUDITS[0], *_REPAIRS),
        shows=(*_MOVED, "add taken by an old self"),
    ),
    "a rebalance back to a bookie that reclaims": replace(
        _CLOSED,
        sizes=(2, 2, 2),
        expiries=1,
        workers=(("exchange", "b0>b2"), ("exchange", "b1>b0"), ("reclaim", "b0")),
        shows=("swap done", "copies reclaimed", "lock lost", "swap refused"),
    ),
    "a reclaim while copies are missing": replace(
        _CLOSED,
        losses=1,
        wipes=1,
        workers=(*_AUDITS, _REPAIRS[0], ("reclaim", "b0")),
        shows=(*_MOVED, "copies reclaimed", "lost bookie rejoined"),
    ),
    "striped, a lost bookie": replace(
        _CLOSED,
        sizes=(3, 2, 2),
        entries=3,
        losses=1,
        workers=(_AUDITS[0], _REPAIRS[0]),
        shows=_MOVED,
    ),
    "a writer that changes its ensemble": replace(
        _OPEN,
        recoverers=0,
        wipes=1,
        losses=1,
        workers=(_AUDITS[0], _REPAIRS[0]),
        transitions=30_000,
        shows=("swap in an open ledger", "change by the writer committed", "mark removed"),
    ),
    "a recovery that closes": replace(
        _OPEN,
        entries=1,
        changes=0,
        drops=1,
        wipes=1,
        losses=1,
        workers=(_AUDITS[0], _REPAIRS[0]),
        transitions=30_000,
        shows=("closed by recovery", "swap done", "mark removed"),
    ),
}
"""Each transition takes about as long as two of the other scopes."""
