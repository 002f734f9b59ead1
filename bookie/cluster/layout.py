"""The layout of a cluster's ledgers in its metadata store, chosen when the cluster is created.

============ =====================================================================================
layout       key of a ledger
============ =====================================================================================
flat         ``/ledgers/<19 digits>``
hierarchical ``/ledgers/00/0000/L0001`` for ids up to 2^31 - 2,
             ``/ledgers/000/0000/0000/0000/L0001`` for greater ids
============ =====================================================================================

The hierarchical keys are the same as in Java's BookKeeper. Most stores can list a directory of a
million records. ZooKeeper limits a listing to one packet of a megabyte, about 40 000 ledgers. So
the default layout on ZooKeeper is hierarchical.

The record ``LAYOUT`` names the layout. A program refuses to work with an unknown layout.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from bookie.cluster import keys
from bookie.cluster.digit_tree import DigitTree
from bookie.errors import BadRequestError, FormatError, NewerFormatError, NoSuchKeyError
from bookie.ids import MAX_ID, NO_ENTRY
from bookie.metadata import json_record
from bookie.metadata.model import Record
from bookie.metadata.store import MetadataStore

_FORMAT = "bookie-layout"
_VERSION = 1

SHORT_ID_MAX = 2**31 - 2
"""The highest id that the hierarchical layout keeps in its short tree."""

UNINITIALIZED = "the metadata store holds no cluster; make one with `bookie cluster init`"


@dataclass(frozen=True, slots=True)
class LedgerLayout:
    """The trees that hold the ledgers' metadata: one tree, or several trees with the same root.

    The first tree holds the ids up to its maximum. Each further tree holds the ids above the
    previous tree's maximum, up to its own maximum.
    """

    name: str
    """The layout's name in the record ``LAYOUT``."""
    trees: tuple[DigitTree, ...]

    def under(self, root: str) -> LedgerLayout:
        """Return the same layout for records below `root` instead of ``/ledgers``."""
        return replace(self, trees=tuple(replace(tree, root=root) for tree in self.trees))

    def key(self, ledger_id: int) -> str:
        """Return the key of a ledger's metadata.

        Raises:
            BadRequestError: the number is not a ledger id.
        """
        for tree in self.trees[:-1]:
            if isinstance(ledger_id, int) and 0 <= ledger_id <= tree.maximum:
                return tree.key(ledger_id)
        return self.trees[-1].key(ledger_id)

    async def scan(
        self, store: MetadataStore, *, after: int = NO_ENTRY
    ) -> AsyncIterator[tuple[int, Record]]:
        """Yield the ids above `after` and their records, ascending; see `DigitTree.scan`."""
        async for tree, names, floor in self._parts(store, after):
            async for found in tree.scan(store, names, after=floor):
                yield found

    async def scan_ids(self, store: MetadataStore, *, after: int = NO_ENTRY) -> AsyncIterator[int]:
        """Yield the ids above `after`, without reading records; see `DigitTree.scan_numbers`."""
        async for tree, names, floor in self._parts(store, after):
            async for ledger_id in tree.scan_numbers(store, names, after=floor):
                yield ledger_id

    async def _parts(
        self, store: MetadataStore, after: int
    ) -> AsyncIterator[tuple[DigitTree, list[str] | None, int]]:
        """Yield the trees with ids above `after`, in the order of their ids.

        Each tree is yielded with its names below the root (None: all names), and with a lower
        bound: only ids above this bound are wanted.

        Raises:
            FormatError: a name below the root belongs to no tree.
        """
        if len(self.trees) == 1:
            yield self.trees[0], None, after
            return
        for tree in self.trees:
            # List the root again for each tree, to find every ledger that exists during the whole
            # scan.
            names = await store.get_children(tree.root)
            for name in names:
                if not any(each.owns(name) for each in self.trees):
                    raise FormatError(f"the metadata key {tree.root}/{name} is not a ledger")
            if after < tree.maximum:
                yield tree, [name for name in names if tree.owns(name)], after
            after = max(after, tree.maximum)


FLAT = LedgerLayout("flat", (DigitTree(keys.LEDGERS, (19,), maximum=MAX_ID),))
HIERARCHICAL = LedgerLayout(
    "hierarchical",
    (
        DigitTree(keys.LEDGERS, (2, 4, 4), "L", SHORT_ID_MAX),
        DigitTree(keys.LEDGERS, (3, 4, 4, 4, 4), "L", MAX_ID),
    ),
)
LAYOUTS = {layout.name: layout for layout in (FLAT, HIERARCHICAL)}


def layout_of(name: str | None, store: MetadataStore) -> LedgerLayout:
    """Return the layout called `name`; None means the layout that suits the kind of `store`.

    Raises:
        BadRequestError: the layout is unknown.
    """
    if name is None:
        return FLAT if store.lists_wide_directories else HIERARCHICAL
    layout = LAYOUTS.get(name)
    if layout is None:
        raise BadRequestError(
            f"there is no layout {name!r}; there are {' and '.join(sorted(LAYOUTS))}"
        )
    return layout


def encode_layout(layout: LedgerLayout) -> bytes:
    """Encode a layout as the value of ``LAYOUT``."""
    return json_record.encode(_FORMAT, _VERSION, {"ledgers": layout.name})


def decode_layout(value: bytes) -> LedgerLayout:
    """Decode the layout in a value of ``LAYOUT``.

    Raises:
        FormatError: the value is damaged, or this program does not know the layout. The message
            names the key.
    """
    try:
        name = json_record.decode(_FORMAT, _VERSION, value).text("ledgers")
    except NewerFormatError as error:
        raise NewerFormatError(f"the metadata key {keys.LAYOUT}: {error}") from error
    except FormatError as error:
        raise FormatError(f"the metadata key {keys.LAYOUT} is damaged: {error}") from error
    layout = LAYOUTS.get(name)
    if layout is None:
        raise FormatError(
            f"the metadata key {keys.LAYOUT} lays the ledgers out as {name!r}, which is unknown "
            "here"
        )
    return layout


async def read_layout(store: MetadataStore) -> LedgerLayout:
    """Read the layout of the cluster from the store.

    Raises:
        NoSuchKeyError: the cluster was never initialized.
        FormatError: the record is damaged, or this program does not know its layout.
    """
    record = await store.get(keys.LAYOUT)
    if record is None:
        raise NoSuchKeyError(UNINITIALIZED)
    return decode_layout(record.value)
