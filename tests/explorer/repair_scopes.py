"""The worlds in which repair is explored, each small enough that most are seen whole."""

from __future__ import annotations

from dataclasses import replace

from tests.explorer.explored_world import Scope

_AUDITS = (("audit", "a1"), ("audit", "a2"))
_REPAIRS = (("repair", "r1"), ("repair", "r2"))
_MOVED = ("mark made", "entries copied", "swap done", "mark removed")

_CLOSED = Scope(
    begins="closed", closes=True, spares=1, recoverers=0, loses=("b0",), transitions=40_000
)
_CHANGED = Scope(
    begins="changed",
    closes=True,
    spares=2,
    changes=1,
    entries=2,
    recoverers=0,
    wipes=1,
    wipes_of=("b2",),
    loses=("b0",),
    workers=(_AUDITS[0], _REPAIRS[0]),
    transitions=40_000,
)

REPAIR_SCOPES = {
    "a lost bookie, two replicators, locks are lost": replace(
        _CLOSED,
        expiries=1,
        workers=(_AUDITS[0], *_REPAIRS),
        shows=(*_MOVED, "lock lost", "swap refused"),
    ),
    "a lost bookie rejoins": replace(
        _CLOSED,
        rejoins=True,
        expiries=1,
        workers=(*_AUDITS, _REPAIRS[0]),
        transitions=30_000,
        shows=(*_MOVED, "lost bookie rejoined"),
    ),
    "a lost bookie, answers do not come": replace(
        _CLOSED,
        cuts=1,
        workers=(_AUDITS[0], *_REPAIRS),
        shows=(*_MOVED, "late transaction of repair done", "late add done"),
    ),
    "a wiped bookie, two audits": replace(
        _CLOSED,
        spares=0,
        loses=(),
        wipes=1,
        expiries=1,
        workers=(*_AUDITS, _REPAIRS[0]),
        shows=("mark made", "entries copied", "mark removed", "lock lost"),
    ),
    "a loss during a repair": replace(
        _CLOSED,
        sizes=(2, 2, 2),
        loses=(),
        spares=0,
        wipes=2,
        wipes_of=("b0",),
        workers=(*_AUDITS, _REPAIRS[0]),
        shows=("mark made", "entries copied", "mark removed"),
    ),
    "a newcomer loses its copies": replace(
        _CLOSED,
        wipes=1,
        wipes_of=("b3",),
        workers=(_AUDITS[0], *_REPAIRS),
        shows=(*_MOVED, "swap refused", "copy refused by another incarnation"),
    ),
    "an old self takes copies": replace(
        _CLOSED,
        wipes=1,
        wipes_of=("b3",),
        old_selves=True,
        workers=(_AUDITS[0], *_REPAIRS),
        shows=(*_MOVED, "add taken by an old self"),
    ),
    "a rebalance back to a bookie that reclaims": replace(
        _CLOSED,
        sizes=(2, 2, 2),
        loses=(),
        expiries=1,
        workers=(("exchange", "b0>b2"), ("exchange", "b1>b0"), ("reclaim", "b0")),
        shows=("swap done", "copies reclaimed", "lock lost", "swap refused"),
    ),
    "a reclaim while a member loses its copies": replace(
        _CLOSED,
        loses=(),
        wipes=1,
        wipes_of=("b1", "b3"),
        old_selves=True,
        workers=(("exchange", "b0>b3"), ("reclaim", "b0"), _AUDITS[0], _REPAIRS[0]),
        shows=("swap done", "copies reclaimed", "mark removed"),
    ),
    "bookies reclaim, and the store goes back": replace(
        _CLOSED,
        sizes=(2, 2, 2),
        loses=(),
        restores=1,
        cuts=1,
        workers=(("exchange", "b0>b2"), ("reclaim", "b0"), ("reclaim", "b2")),
        shows=("swap done", "copies reclaimed", "reclaim ended"),
    ),
    "a lost bookie that rejoins reclaims": replace(
        _CLOSED,
        rejoins=True,
        expiries=1,
        workers=(_AUDITS[0], _REPAIRS[0], ("reclaim", "b0")),
        shows=(*_MOVED, "copies reclaimed", "lost bookie rejoined"),
    ),
    "striped, a lost bookie": replace(
        _CLOSED,
        sizes=(3, 2, 2),
        entries=3,
        workers=(_AUDITS[0], *_REPAIRS),
        shows=_MOVED,
    ),
    "a writer that changes its ensemble": replace(
        _CHANGED,
        shows=(
            *("swap in an open ledger", "swap done", "conflict of the writer"),
            *("closed by the writer", "mark removed"),
        ),
    ),
    "a writer that changes its ensemble, locks are lost": replace(
        _CHANGED,
        expiries=1,
        timers=1,
        changes=2,
        shows=("swap done", "change by the writer committed", "lock lost", "swap refused"),
    ),
    "a recovery that closes": replace(
        _CHANGED,
        recoverers=1,
        shows=(
            *("closed by recovery", "swap in an open ledger", "swap done"),
            *("conflict of recovery", "mark removed"),
        ),
        shows_in_a_soak=("swap refused",),
    ),
}
