"""Replaces bookies of an open ledger: one ensemble change, and the slots that need a new bookie.

An ensemble change appends a fragment that begins after the last add confirmed. In the new fragment,
newcomers replace the bookies that failed. Until the metadata store has answered, the store may hold
the old or the proposed metadata. The following rule keeps entries safe:

    For every acknowledged entry: in each version of the metadata that the store may hold now, at
    least Qa bookies that store the entry are members of the ensemble.

So during a change, only acknowledgements of bookies that stay in the ensemble count. A batch needs
Qa of these acknowledgements to be confirmed. For the newcomers, the writer keeps the change's first
entry and all later entries.

While the proposal may still reach the store, the writer does not abandon the change. The writer
repeats the identical proposal with the same version, until a compare-and-set succeeds or the
metadata has another version.

Source: the BookKeeper protocol document, "Ensemble changes".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.ledger.quorum import mask_of


class ChangeOutcome(enum.Enum):
    """The state of an ensemble change, as the metadata shows it after the proposal."""

    DONE = "it is in force"
    UNDECIDED = "the store has not seen it yet, and may still take it"
    OVERTAKEN = "it never happened and cannot happen; the ledger is still ours"
    TAKEN = "another client recovers the ledger, or has closed it"
    FOREIGN = "somebody else chose the bookies that new entries go to"


@dataclass(frozen=True, slots=True)
class EnsembleChange:
    """A proposed new last fragment of an open ledger."""

    before: LedgerMetadata
    version: int
    """The metadata version of `before`, for the compare-and-set."""
    first_entry_id: int
    """The id after the last add confirmed (LAC) at the time of the proposal."""
    newcomers: Mapping[int, str]
    """The new bookies, by slot. A bookie that lost its data may be its own newcomer."""

    @property
    def replaced(self) -> int:
        return mask_of(self.newcomers)

    @property
    def proposal(self) -> LedgerMetadata:
        """Return the changed metadata; if the last fragment has no confirmed entry, replace it."""
        last = self.before.last_fragment
        bookies = tuple(self.newcomers.get(slot, b) for slot, b in enumerate(last.bookies))
        kept = self.before.fragments
        if last.first_entry_id == self.first_entry_id:
            kept = kept[:-1]
        return replace(self.before, fragments=(*kept, Fragment(self.first_entry_id, bookies)))

    def outcome(self, found: LedgerMetadata, version: int) -> ChangeOutcome:
        """Return the state of the change; `found` is metadata that was read after the proposal."""
        if found.state is not LedgerState.OPEN:
            return ChangeOutcome.TAKEN
        if version == self.version:
            return ChangeOutcome.UNDECIDED
        # If every newcomer is the former bookie of its slot, both fragments are equal. Then the
        # change only had to prove that the ledger was still open.
        if found.last_fragment == self.proposal.last_fragment:
            return ChangeOutcome.DONE
        if found.last_fragment == self.before.last_fragment:
            return ChangeOutcome.OVERTAKEN
        return ChangeOutcome.FOREIGN


class Replacements:
    """The slots that need another bookie, and the limit of changes; each set is a bit mask."""

    def __init__(self, changes_per_minute_max: int) -> None:
        self._changes_max = changes_per_minute_max
        self.due = 0
        """Slots that need another bookie now."""
        self.returning = 0
        """Slots with broken streams that still have time to reconnect."""
        self.urgent = 0
        """The slots in `returning` that have a shorter time to reconnect, because an ack quorum
        needs them."""
        self.is_choosing = False
        """True if newcomers were requested and the answer has not arrived."""
        self.lacks_spares = False
        """True for a while after a search found no newcomer; during this time, no search starts."""
        self.left = changes_per_minute_max
        """The number of changes that may begin now."""

    @property
    def are_allowed(self) -> bool:
        return self._changes_max > 0

    @property
    def may_begin(self) -> bool:
        is_free = not self.is_choosing and not self.lacks_spares
        return self.due != 0 and self.left > 0 and is_free

    @property
    def limit_spent(self) -> int:
        """The limit of changes per minute, if this limit delays a needed change; otherwise 0."""
        return self._changes_max if self.due and self.left <= 0 else 0

    def want(self, slots: int) -> None:
        """Record that these slots need another bookie now."""
        if self.are_allowed:
            self.due |= slots
            self.returning &= ~slots
            self.urgent &= ~slots

    def keep(self, slots: int) -> None:
        """Record that these slots do not need another bookie."""
        self.due &= ~slots
        self.returning &= ~slots
        self.urgent &= ~slots
