"""How the ledgers of a cluster are laid out in its metadata store: decided once, at its beginning.

============ =====================================================================================
layout       key of a ledger
============ =====================================================================================
flat         ``/ledgers/<19 digits>``
hierarchical ``/ledgers/00/0000/L0001`` up to id 2^31 - 2, ``/ledgers/000/0000/0000/0000/L0001``
             above: where Java's BookKeeper has them
============ =====================================================================================

Most stores list a directory of a million records. ZooKeeper answers a listing with one packet of a
megabyte at most, some 40 000 ledgers; there the default is hierarchical.

The record ``LAYOUT`` says which it is. A program leaves a layout alone that it does not know.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from bookie.cluster import keys
from bookie.cluster.digit_tree import DigitTree
from bookie.errors import (
    BadRequestError,
    FormatError,
    KeyExistsError,
    LayoutExistsError,
    NewerFormatError,
    NoSuchKeyError,
)
from bookie.formats import json_record
from bookie.ids import MAX_ID, NO_ENTRY
from bookie.metadata.store import NOT_EXISTS, MetadataStore, Record

_FORMAT = "bookie-layout"
_VERSION = 1

SHORT_ID_MAX = 2**31 - 2
"""The highest id that the hierarchical layout keeps in its short tree."""

UNINITIALIZED = "the metadata store holds no cluster; make one with `bookie cluster init`"


class LedgerLayout(Protocol):
    """Where ledgers lie."""

    @property
    def name(self) -> str:
        """What ``LAYOUT`` calls it."""
        ...

    def under(self, root: str) -> LedgerLayout:
        """The same layout with its records below another key than ``/ledgers``."""
        ...

    def key(self, ledger_id: int) -> str:
        """The key of a ledger's metadata; BadRequestError if it is no ledger id."""
        ...

    def scan(self, store: MetadataStore, *, after: int) -> AsyncIterator[tuple[int, Record]]:
        """The ledgers above `after` with their records, ascending; see `DigitTree.scan`."""
        ...

    def scan_ids(self, store: MetadataStore, *, after: int) -> AsyncIterator[int]:
        """The ids alone, without reading a record; see `DigitTree.scan_numbers`."""
        ...


class FlatLayout:
    """All ledgers in one directory."""

    name = "flat"

    def __init__(self, root: str = keys.LEDGERS) -> None:
        self._tree = DigitTree(root, (19,), maximum=MAX_ID)

    def under(self, root: str) -> FlatLayout:
        """See `LedgerLayout.under`."""
        return FlatLayout(root)

    def key(self, ledger_id: int) -> str:
        """See `LedgerLayout.key`."""
        return self._tree.key(ledger_id)

    def scan(
        self, store: MetadataStore, *, after: int = NO_ENTRY
    ) -> AsyncIterator[tuple[int, Record]]:
        """See `LedgerLayout.scan`."""
        return self._tree.scan(store, after=after)

    def scan_ids(self, store: MetadataStore, *, after: int = NO_ENTRY) -> AsyncIterator[int]:
        """See `LedgerLayout.scan_ids`."""
        return self._tree.scan_numbers(store, after=after)


class HierarchicalLayout:
    """Two trees of directories, one for ids that fit 31 bits and one for the others."""

    name = "hierarchical"

    def __init__(self, root: str = keys.LEDGERS) -> None:
        self._root = root
        self._short = DigitTree(root, (2, 4, 4), "L", SHORT_ID_MAX)
        self._long = DigitTree(root, (3, 4, 4, 4, 4), "L", MAX_ID)

    def under(self, root: str) -> HierarchicalLayout:
        """See `LedgerLayout.under`."""
        return HierarchicalLayout(root)

    def key(self, ledger_id: int) -> str:
        """See `LedgerLayout.key`."""
        if isinstance(ledger_id, int) and 0 <= ledger_id <= SHORT_ID_MAX:
            return self._short.key(ledger_id)
        return self._long.key(ledger_id)

    async def scan(
        self, store: MetadataStore, *, after: int = NO_ENTRY
    ) -> AsyncIterator[tuple[int, Record]]:
        """See `LedgerLayout.scan`."""
        async for tree, names, floor in self._trees(store, after):
            async for ledger_id, record in tree.scan(store, names, after=floor):
                yield ledger_id, record

    async def scan_ids(self, store: MetadataStore, *, after: int = NO_ENTRY) -> AsyncIterator[int]:
        """See `LedgerLayout.scan_ids`."""
        async for tree, names, floor in self._trees(store, after):
            async for ledger_id in tree.scan_numbers(store, names, after=floor):
                yield ledger_id

    async def _trees(
        self, store: MetadataStore, after: int
    ) -> AsyncIterator[tuple[DigitTree, list[str], int]]:
        """Both trees in the order of their ids, with their names below the root."""
        for tree, floor in ((self._short, after), (self._long, max(after, SHORT_ID_MAX))):
            # Listed again for the second tree: a ledger of the whole scan's time is in it.
            names = await store.get_children(self._root)
            for name in names:
                if not (self._short.owns(name) or self._long.owns(name)):
                    raise FormatError(f"the metadata key {self._root}/{name} is not a ledger")
            if floor < tree.maximum:
                yield tree, [name for name in names if tree.owns(name)], floor


FLAT = FlatLayout()
HIERARCHICAL = HierarchicalLayout()
LAYOUTS: dict[str, LedgerLayout] = {layout.name: layout for layout in (FLAT, HIERARCHICAL)}


def layout_of(name: str | None, store: MetadataStore) -> LedgerLayout:
    """The layout called `name`; None means the one that fits the store.

    Raises:
        BadRequestError: there is no such layout.
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
    """The value of ``LAYOUT``."""
    return json_record.encode(_FORMAT, _VERSION, {"ledgers": layout.name})


def decode_layout(value: bytes) -> LedgerLayout:
    """What a value of ``LAYOUT`` says.

    Raises:
        FormatError: in one sentence that names the key: damaged, or a layout that this program does
            not know.
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


class LayoutManager:
    """The record ``LAYOUT``."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self) -> LedgerLayout:
        """The layout of the cluster.

        Raises:
            NoSuchKeyError: the cluster was never initialized.
            FormatError: the record is damaged, or of a layout that this program does not know.
        """
        record = await self._store.get(keys.LAYOUT)
        if record is None:
            raise NoSuchKeyError(UNINITIALIZED)
        return decode_layout(record.value)

    async def create(self, layout: LedgerLayout) -> None:
        """Write the layout down.

        Raises:
            LayoutExistsError: the cluster has a layout; it was not changed.
        """
        try:
            await self._store.put(keys.LAYOUT, encode_layout(layout), version=NOT_EXISTS)
        except KeyExistsError as error:
            raise LayoutExistsError("the cluster has a layout already") from error

    async def delete(self) -> None:
        """Forget the layout; for clusters that end.

        Raises:
            NoSuchKeyError: there is no layout.
        """
        await self._store.delete(keys.LAYOUT)
