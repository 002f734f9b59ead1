"""Replacing bookies of an open ledger: one change, and the slots that wait for one.

A change appends a fragment that begins after the last add confirmed, in which newcomers stand in
the place of bookies that failed. Until the store has answered, it may hold the metadata from before
or the proposed one. The rule that keeps entries safe:

    For every acknowledged entry, at least Qa holders are members in every version of the metadata
    that the store may hold now.

So while a change is under way, only bookies that stay count, and a batch may be confirmed with Qa
of those. Everything from the change's first entry on is kept for the newcomers.

A change is never given up while it may still arrive. It is proposed again, word for word and with
the same version, until a compare-and-set answers or the version has moved on.

Source: the BookKeeper protocol document, "Ensemble changes".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.ledger.quorum import mask_of


class ChangeOutcome(enum.Enum):
    """The state of a change, by metadata that was read since."""

    DONE = "it is in force"
    UNDECIDED = "the store has not seen it yet, and may still take it"
    OVERTAKEN = "it never happened and cannot happen; the ledger is still ours"
    TAKEN = "another client recovers the ledger, or has closed it"
    FOREIGN = "somebody else chose the bookies that new entries go to"


@dataclass(frozen=True, slots=True)
class EnsembleChange:
    """A new last fragment for an open ledger."""

    before: LedgerMetadata
    version: int
    """Version of `before`, for the compare-and-set."""
    first_entry_id: int
    """The entry after the last add confirmed of the moment of the proposal."""
    newcomers: Mapping[int, str]
    """By slot. A bookie that lost its data may be its own successor."""

    @property
    def replaced(self) -> int:
        return mask_of(self.newcomers)

    @property
    def proposal(self) -> LedgerMetadata:
        """The metadata with the change. A last fragment without confirmed entries is replaced."""
        last = self.before.last_fragment
        bookies = tuple(self.newcomers.get(slot, b) for slot, b in enumerate(last.bookies))
        kept = self.before.fragments
        if last.first_entry_id == self.first_entry_id:
            kept = kept[:-1]
        return replace(self.before, fragments=(*kept, Fragment(self.first_entry_id, bookies)))

    def outcome(self, found: LedgerMetadata, version: int) -> ChangeOutcome:
        """The state of the change by `found`, the same ledger's metadata read since."""
        if found.state is not LedgerState.OPEN:
            return ChangeOutcome.TAKEN
        if version == self.version:
            return ChangeOutcome.UNDECIDED
        # A change that names the same bookies again only had to prove that the ledger was open.
        if found.last_fragment == self.proposal.last_fragment:
            return ChangeOutcome.DONE
        if found.last_fragment == self.before.last_fragment:
            return ChangeOutcome.OVERTAKEN
        return ChangeOutcome.FOREIGN


class Replacements:
    """Slots that wait for another bookie, and limits of changes. Sets are masks."""

    def __init__(self, changes_per_minute_max: int) -> None:
        self._changes_max = changes_per_minute_max
        self.due = 0
        """Slots that need another bookie now."""
        self.returning = 0
        """Slots with broken streams that have a while to come back."""
        self.urgent = 0
        """Those of `returning` with only a moment, because an ack quorum needs them."""
        self.is_choosing = False
        """Newcomers were asked for."""
        self.lacks_spares = False
        """No newcomer was found lately; nobody is asked for a while."""
        self.left = changes_per_minute_max
        """Changes that may begin now."""

    @property
    def are_allowed(self) -> bool:
        return self._changes_max > 0

    @property
    def may_begin(self) -> bool:
        """True if newcomers may be asked for."""
        is_free = not self.is_choosing and not self.lacks_spares
        return self.due != 0 and self.left > 0 and is_free

    @property
    def limit_spent(self) -> int:
        """The limit of changes a minute, if slots that are due have to wait for it; else 0."""
        return self._changes_max if self.due and self.left <= 0 else 0

    def want(self, slots: int) -> None:
        """These slots need another bookie now."""
        if self.are_allowed:
            self.due |= slots
            self.returning &= ~slots
            self.urgent &= ~slots

    def keep(self, slots: int) -> None:
        """These slots do not need another bookie."""
        self.due &= ~slots
        self.returning &= ~slots
        self.urgent &= ~slots
