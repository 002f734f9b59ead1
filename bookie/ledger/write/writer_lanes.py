"""The lanes of one writer: a stream to each bookie of its ensemble, shared with other ledgers."""

from __future__ import annotations

import asyncio
import random
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from bookie.errors import BookieError, NotEnoughBookiesError
from bookie.ids import is_vacant
from bookie.ledger.connection.pool import AddConnection, BookiePool, OnAnswer
from bookie.ledger.exchange import ChooseNewcomers
from bookie.ledger.place.ensembles import Ensembles
from bookie.ledger.quorum import slots_of
from bookie.ledger.write.requests import Request
from bookie.ledger.write.writer_events import (
    SlotConnected,
    SlotDisconnected,
    SlotLost,
    SlotSilent,
    SpanDomains,
    WriterEvent,
)
from bookie.telemetry import event_log

_log = event_log(__name__)

_SILENT_SHARE = 0.8
"""If a bookie is silent for this fraction of the add timeout, other ledgers of the client are
told."""

_SPREAD_SECONDS = 0.5
"""Each ledger of a client handles a bookie's silence at a random time within this number of
seconds."""


class LaneOwner(Protocol):
    """A writer that uses lanes and handles their events."""

    def take(self, event: WriterEvent) -> None:
        """Handle an event of a lane."""


class _Slot:
    """One bookie of the ensemble, as a user of its lane."""

    def __init__(
        self, owner: weakref.ref[LaneOwner], slot: int, epoch: int, lane: AddConnection
    ) -> None:
        # A weak reference, because the lanes must not keep a writer alive whose user has dropped
        # it.
        self._owner = owner
        self._slot = slot
        self._epoch = epoch
        self.lane = lane

    def on_up(self) -> None:
        self._tell(SlotConnected(self._slot, self._epoch))

    def on_down(self) -> None:
        self._tell(SlotDisconnected(self._slot, self._epoch))

    def on_lost(self) -> None:
        self._tell(SlotLost(self._slot, self._epoch))

    def on_missing(self) -> None:
        self._tell(SlotSilent(self._slot, self._epoch))

    def on_silent(self) -> None:
        # All ledgers of the client are told of the silence at once, so spread their ensemble
        # changes over time.
        seconds = random.uniform(0, _SPREAD_SECONDS)  # noqa: S311  (jitter)
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, self._tell_silent, self.lane.heard_at)

    def _tell_silent(self, heard_at: float) -> None:
        if self.lane.is_up and self.lane.heard_at == heard_at:  # the bookie is still silent
            self._tell(SlotSilent(self._slot, self._epoch))

    def _tell(self, event: WriterEvent) -> None:
        owner = self._owner()
        if owner is not None:
            owner.take(event)


class WriterLanes:
    """The lanes of one writer, one for each slot.

    Args:
        owner: gets the events of the lanes; the lanes have only a weak reference to the owner.
        ledger_id: the ledger's id, for the log.
        pool: the client's connections, which include the lanes.
        bookies: the first ensemble.
        incarnations: the incarnations of the bookies, read before the ledger was created.
        ensembles: chooses newcomers and knows their incarnations; None if no bookie is ever
            replaced.
    """

    def __init__(
        self,
        owner: LaneOwner,
        ledger_id: int,
        pool: BookiePool,
        bookies: Sequence[str],
        incarnations: Mapping[str, str],
        ensembles: Ensembles | None,
    ) -> None:
        self._owner = weakref.ref(owner)
        self._ledger_id = ledger_id
        self._pool = pool
        self._ensembles = ensembles
        self._incarnations = dict(incarnations)
        self._bookies = list(bookies)
        self._epochs = [0] * len(bookies)
        self._is_used = False
        self._asked = 0
        """The slots of the last request for newcomers, as a bit mask."""
        self._slots = [
            _Slot(self._owner, slot, 0, pool.connection(bookie_id).plain(incarnations[bookie_id]))
            for slot, bookie_id in enumerate(bookies)
        ]

    @property
    def is_used(self) -> bool:
        return self._is_used

    def join(self, lost: Collection[str]) -> None:
        """Join the lanes of all bookies except `lost`; the lost bookies have new incarnations."""
        self._is_used = True
        self._tell_domains()
        for slot, bookie_id in zip(self._slots, self._bookies, strict=True):
            if bookie_id in lost:
                slot.on_lost()
            elif is_vacant(bookie_id):
                slot.on_missing()
            else:
                slot.lane.join(slot)

    def leave(self) -> None:
        if self._is_used:
            self._is_used = False
            for slot in self._slots:
                slot.lane.leave(slot)

    def send(self, slot: int, request: Request, on_answer: OnAnswer) -> None:
        request_id, data = request
        self._slots[slot].lane.send(request_id, data, on_answer)

    def life(self, slot: int) -> str:
        """Return the id of the bookie process whose acknowledgements count; empty if unknown."""
        return self._slots[slot].lane.life

    def describe(self) -> list[str]:
        return [slot.lane.describe() for slot in self._slots]

    def explained(self, error: BookieError) -> BookieError:
        """If a bookie has a TLS error, put it before the text of a NotEnoughBookiesError."""
        problems = [slot.lane.tls_problem for slot in self._slots if slot.lane.tls_problem]
        if problems and isinstance(error, NotEnoughBookiesError):
            error.args = (f"{problems[0]}; {error}",)
        return error

    # -- newcomers -------------------------------------------------------------------------------

    def choose(self, effect: ChooseNewcomers, write_quorum_size: int) -> dict[int, str]:
        """Choose newcomers for `effect.slots`, and report the failed bookies to other ledgers."""
        ensembles = self._ensembles
        assert ensembles is not None
        seconds = self._pool.settings.add_timeout_seconds * _SILENT_SHARE
        for slot in slots_of(effect.slots):
            user = self._slots[slot]
            if not self._asked >> slot & 1:  # report each failure only once
                ensembles.quarantine.put(effect.bookies[slot])
                user.lane.suspect(user, seconds)
        self._asked = effect.slots
        return ensembles.newcomers_or_renewed(
            effect.bookies, effect.slots, write_quorum_size, self._incarnations
        )

    def replace(
        self, newcomers: Mapping[int, str], epochs: Sequence[int], first_entry_id: int
    ) -> None:
        """Leave the lanes of replaced bookies, and start to join the lanes of newcomers."""
        for slot, bookie_id in newcomers.items():
            former = self._slots[slot]
            former.lane.leave(former)
            self._epochs[slot] = epochs[slot]
            self._asked &= ~(1 << slot)
            self._bookies[slot] = bookie_id
            _log.warning(
                "bookie_replaced",
                ledger_id=self._ledger_id,
                slot=slot,
                bookie_id=bookie_id,
                first_entry_id=first_entry_id,
                former=former.lane.describe(),
            )
            self._pool.spawn(
                self._join(slot, epochs[slot], bookie_id),
                name=f"ledger {self._ledger_id} joins {bookie_id}",
            )

        self._tell_domains()

    def _tell_domains(self) -> None:
        """Report to the owner which failure domains acknowledgements must span."""
        owner = self._owner()
        if self._ensembles is not None and owner is not None:
            owner.take(SpanDomains(self._ensembles.ack_domains(self._bookies)))

    async def _join(self, slot: int, epoch: int, bookie_id: str) -> None:
        assert self._ensembles is not None
        incarnation = await self._ensembles.incarnation_of_newcomer(bookie_id)
        owner = self._owner()
        if epoch != self._epochs[slot] or not self._is_used or owner is None:
            return
        if incarnation is None:
            # Remember the incarnation, so that the bookie gets its slot back only after it
            # registers with another incarnation.
            self._incarnations[bookie_id] = self._ensembles.directory.incarnation(bookie_id)
            owner.take(SlotLost(slot, epoch))
            return
        self._incarnations[bookie_id] = incarnation
        lane = self._pool.connection(bookie_id).plain(incarnation)
        user = self._slots[slot] = _Slot(self._owner, slot, epoch, lane)
        lane.join(user)
