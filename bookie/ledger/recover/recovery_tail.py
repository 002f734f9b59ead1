"""The tail of a recovery: fragments that stay in memory until the ledger is closed.

A recovery reads the last fragment as it found it, the **frozen** one, to its end. It may store what
it finds on other bookies. The tail is the list of fragments that take the place of the frozen one
in the metadata of the closed ledger. Only then may others see it. Before that, some bookies of the
tail hold nothing yet, and another recovery would take their denials for the truth.

Source: the notes on recovery in the TLA+ specification of BookKeeper's protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bookie.ledger.metadata import Fragment, LedgerMetadata


@dataclass(frozen=True, slots=True)
class RecoveryTail:
    """The fragments in place of the last one. Changes are new values."""

    frozen: Fragment
    """The last fragment when the recovery began: it is fenced and read."""
    fragments: tuple[Fragment, ...]
    """Their first ids ascend; the first of them is that of `frozen`."""

    @classmethod
    def of(cls, metadata: LedgerMetadata) -> RecoveryTail:
        """The tail of a recovery that has changed nothing yet."""
        return cls(metadata.last_fragment, (metadata.last_fragment,))

    @property
    def bookies(self) -> tuple[str, ...]:
        """The ensemble that entries are stored on now."""
        return self.fragments[-1].bookies

    @property
    def newcomers(self) -> tuple[str, ...]:
        """The bookies that the metadata in the store may not name yet, sorted."""
        every = {bookie for fragment in self.fragments for bookie in fragment.bookies}
        return tuple(sorted(every.difference(self.frozen.bookies)))

    def changed(self, first_entry_id: int, newcomers: Mapping[int, str]) -> RecoveryTail:
        """The same with other bookies in some slots, from `first_entry_id` on.

        A fragment that begins there already is replaced: first ids must ascend strictly.

        Args:
            first_entry_id: the next entry to be stored. It lies in the last fragment of the tail,
                because an earlier one would rewrite what is stored already.
            newcomers: by slot, bookies outside the present ensemble.
        """
        assert first_entry_id >= self.fragments[-1].first_entry_id
        bookies = tuple(newcomers.get(slot, name) for slot, name in enumerate(self.bookies))
        assert len(set(bookies)) == len(bookies)
        before = tuple(f for f in self.fragments if f.first_entry_id < first_entry_id)
        return replace(self, fragments=(*before, Fragment(first_entry_id, bookies)))

    def published(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """`metadata` with the tail in place of its last fragment, which must be the frozen one.

        All else stays: a repair may have changed earlier fragments meanwhile.
        """
        assert metadata.last_fragment == self.frozen
        return replace(metadata, fragments=(*metadata.fragments[:-1], *self.fragments))
