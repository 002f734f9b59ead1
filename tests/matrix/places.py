"""Where things stand in the directories of a specimen: blocks, records, pages of the index.

Found by reading the files, because threads decide how records come together in blocks.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from bookie.env import PosixDisk
from bookie.node.engine.files import read_header
from bookie.node.engine.format.blocks import FILE_HEADER_SIZE_BYTES
from bookie.node.engine.format.records import (
    DeletedRecord,
    EntriesRecord,
    FenceRecord,
    LacRecord,
    LedgerRecord,
    LimboRecord,
    LinkRecord,
    Record,
    parse_records,
)
from bookie.node.engine.scan import ScannedBlock, blocks

PAGE_BYTES = 4096
SECTOR_BYTES = 512

_RECORD_OF_KIND: dict[str, type[Record]] = {
    "entries": EntriesRecord,
    "steps": EntriesRecord,
    "recovery": EntriesRecord,
    "ledger": LedgerRecord,
    "fence": FenceRecord,
    "lac": LacRecord,
    "deleted": DeletedRecord,
    "limbo": LimboRecord,
    "unlimbo": LimboRecord,
    "limbo unfenced": LimboRecord,
    "link": LinkRecord,
}


@dataclass(frozen=True)
class Spot:
    """One record, its block, and the blocks of its file."""

    path: Path
    block: ScannedBlock
    record_at: int
    """Offset of the record's header in the file."""
    record: Record
    others: list[ScannedBlock]


def files_of(root: Path) -> list[Path]:
    """Journals and logs in the order of their numbers."""
    found = [*(root / "journal").glob("*.journal"), *(root / "ledgers" / "logs").glob("*.log")]
    return sorted(found, key=lambda path: path.name)


def scan(path: Path) -> list[ScannedBlock]:
    """The valid blocks of a file."""
    file = PosixDisk().open(str(path))
    try:
        return list(blocks(file, read_header(file), FILE_HEADER_SIZE_BYTES, 0))
    finally:
        file.close()


def spot_of(root: Path, kind: str, ledger_id: int) -> Spot:
    """The newest record of `kind` about the ledger, but for what a log repeats.

    The last block of a log says again what is known of its ledgers beside their entries.
    """
    found: Spot | None = None
    for path in files_of(root):
        others = scan(path)
        for block in others:
            for at, record in parse_records(memoryview(block.body), block.header.record_count):
                again = path.suffix == ".log" and found is not None and found.path == path
                if again and not isinstance(record, EntriesRecord):
                    continue
                if isinstance(record, _RECORD_OF_KIND[kind]) and _ledger_of(record) == ledger_id:
                    found = Spot(path, block, block.body_offset + at, record, others)
    assert found is not None, f"no record of kind {kind} about ledger {ledger_id}"
    return found


def link_of(path: Path) -> Spot:
    """The link in the first block of a file."""
    others = scan(path)
    at, record = next(parse_records(memoryview(others[0].body), others[0].header.record_count))
    assert isinstance(record, LinkRecord)
    return Spot(path, others[0], others[0].body_offset + at, record, others)


def _ledger_of(record: Record) -> int:
    if isinstance(record, EntriesRecord):
        return record.batch.ledger_id
    return -1 if isinstance(record, LinkRecord) else record.ledger_id


# --- the pages of the index -----------------------------------------------------------------------

_PAGE = struct.Struct("<QHHHH")
_NODE = struct.Struct("<HHHH")
_BRANCH, _LEAF = 1, 2
META_FIELDS = {
    "page number": 0,
    "page flags": 10,
    "magic": 16,
    "version": 20,
    "page size": 40,
    "root of the free list": 40 + 40,
    "root of the tables": 88 + 40,
    "entries": 88 + 32,
    "last page": 136 + 3,
    "transaction": 144,
}
"""Where they stand in a meta page: a page header, then what the newest snapshot is."""


@dataclass(frozen=True)
class Tree:
    """The pages of one table, from its root."""

    branches: list[int]
    leaves: list[int]


def newest_meta(data: bytes) -> int:
    """Which of the two meta pages counts."""
    first, second = (struct.unpack_from("<Q", data, at + 144)[0] for at in (0, PAGE_BYTES))
    return int(second > first)


def tree_of(data: bytes, table: str) -> Tree:
    """The pages of a table; ``main`` is the one that holds the others, ``free`` the free list."""
    meta = newest_meta(data) * PAGE_BYTES
    if table == "free":
        return _tree(data, struct.unpack_from("<Q", data, meta + 80)[0])
    (root,) = struct.unpack_from("<Q", data, meta + 128)
    if table == "main":
        return _tree(data, root)
    for leaf in _tree(data, root).leaves:
        for key, value in nodes_of(data, leaf):
            if data[key : key + len(table)] == table.encode():
                return _tree(data, struct.unpack_from("<Q", data, value + 40)[0])
    raise AssertionError(table)


def nodes_of(data: bytes, page: int) -> list[tuple[int, int]]:
    """Where key and value of each node of a page stand in the file."""
    start = page * PAGE_BYTES
    _, _, _, lower, _ = _PAGE.unpack_from(data, start)
    found = []
    for offset in struct.unpack_from(f"<{(lower - _PAGE.size) // 2}H", data, start + _PAGE.size):
        _, _, _, key_size = _NODE.unpack_from(data, start + offset)
        key = start + offset + _NODE.size
        found.append((key, key + key_size))
    return found


def _tree(data: bytes, root: int) -> Tree:
    tree = Tree([], [])
    pending = [root]
    while pending:
        page = pending.pop()
        _, _, flags, _, _ = _PAGE.unpack_from(data, page * PAGE_BYTES)
        if flags == _LEAF:
            tree.leaves.append(page)
            continue
        assert flags == _BRANCH
        tree.branches.append(page)
        for key, _ in nodes_of(data, page):
            low, high, _, _ = _NODE.unpack_from(data, key - _NODE.size)
            pending.append(low | high << 16)
    tree.leaves.sort()
    return tree
