"""The tail of a recovery: fragments that stay in memory until the ledger is closed.

A recovery reads the last fragment to its end. It remembers this fragment unchanged, as the
**frozen** fragment. It may store the found entries on other bookies. The tail is the list of
fragments that replace the frozen fragment in the metadata of the closed ledger. Other clients may
see the tail only after the close. Before the close, some bookies of the tail may not have their
entries yet. If the metadata already named them, another recovery would believe their denials.

Source: the notes on recovery in the TLA+ specification of BookKeeper's protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bookie.ledger.metadata import Fragment, LedgerMetadata


@dataclass(frozen=True, slots=True)
class RecoveryTail:
    """The fragments that replace a ledger's last fragment; a change creates a new object."""

    frozen: Fragment
    """The ledger's last fragment when the recovery began; the recovery fences and reads its
    bookies."""
    fragments: tuple[Fragment, ...]
    """The fragments of the tail, in ascending order; the first begins with the first id of
    `frozen`."""

    @classmethod
    def of(cls, metadata: LedgerMetadata) -> RecoveryTail:
        """Return the first tail of a recovery: only the last fragment, unchanged."""
        return cls(metadata.last_fragment, (metadata.last_fragment,))

    @property
    def bookies(self) -> tuple[str, ...]:
        return self.fragments[-1].bookies

    @property
    def newcomers(self) -> tuple[str, ...]:
        """The bookies of the tail that are not in the frozen fragment, sorted."""
        every = {bookie for fragment in self.fragments for bookie in fragment.bookies}
        return tuple(sorted(every.difference(self.frozen.bookies)))

    def changed(self, first_entry_id: int, newcomers: Mapping[int, str]) -> RecoveryTail:
        """Return the tail with other bookies in some slots, from `first_entry_id` on.

        A fragment that already begins with `first_entry_id` is replaced, because first ids must
        ascend strictly.

        Args:
            first_entry_id: the next entry to be stored. The id lies in the last fragment of the
                tail, because entries of earlier fragments are already stored.
            newcomers: maps slots to bookies outside the current ensemble.
        """
        assert first_entry_id >= self.fragments[-1].first_entry_id
        bookies = tuple(newcomers.get(slot, name) for slot, name in enumerate(self.bookies))
        assert len(set(bookies)) == len(bookies)
        before = tuple(f for f in self.fragments if f.first_entry_id < first_entry_id)
        return replace(self, fragments=(*before, Fragment(first_entry_id, bookies)))

    def published(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """Return `metadata` with the tail in place of the last fragment, which must be `frozen`.

        Other parts of `metadata` stay unchanged, because a repair may have changed earlier
        fragments during the recovery.
        """
        assert metadata.last_fragment == self.frozen
        return replace(metadata, fragments=(*metadata.fragments[:-1], *self.fragments))
