"""What can be damaged, how, and where: the axes of the matrix, and the damage done to real files.

A cell is (thing, place, damage). `apply` does what it names to the directories of a specimen.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bookie.env import open_lmdb
from bookie.node.engine.format.blocks import FILE_HEADER_SIZE_BYTES
from bookie.node.engine.format.index_rows import decode_mark, file_key, ledger_key
from bookie.node.engine.format.pages import page_key
from bookie.node.engine.format.records import EntriesRecord
from bookie.node.engine.index.deleted_ledgers import META_DELETING, deletions, note_deletion
from bookie.node.engine.index.entry_index import (
    META_BOOKIE,
    META_BOOT_ID,
    META_CLEAN,
    META_FORMAT,
    META_INSTANCE,
    META_INTEGRITY,
    META_MARK,
    TABLES,
)
from tests.matrix.places import (
    META_FIELDS,
    PAGE_BYTES,
    SECTOR_BYTES,
    Spot,
    files_of,
    link_of,
    newest_meta,
    nodes_of,
    scan,
    spot_of,
    tree_of,
)
from tests.matrix.specimen import DENSE, KINDS, REMOVED, probe_ledger
from tests.unit.node.engine.machine import MIB

BLOCK_FIELDS = {
    "block magic": 0,
    "block length": 8,
    "record count": 12,
    "sequence": 16,
    "durable_upto": 24,
    "body CRC": 32,
    "header CRC": 36,
}
RECORD_FIELDS = ("record length", "ids", "payload")
WHOLE = ("cut before", "cut inside", "zeroed", "garbage", "duplicated", "stale", "of another file")
RECORD_PLACES = ("log", "below", "earlier", "middle", "last", "vouched")
LINK_PLACES = ("log", "below", "mark", "earlier", "middle")

HEADER_FIELDS = {"magic": 0, "version": 8, "kind": 12, "number": 16, "nonce": 24, "CRC": 4092}
HEADER_PLACES = ("log", "below", "mark", "earlier", "middle")
FILE = "journal or log"
HEADER_WHOLE = ("cut inside", "zeroed", "garbage", "of another file")

INDEX_VALUES: dict[str, tuple[str, bytes]] = {
    "location page": ("locations", page_key(DENSE, 1)),
    "ledger row": ("ledgers", ledger_key(100)),
    "row of a fenced ledger": ("ledgers", ledger_key(probe_ledger("log", "fence"))),
    "file row": ("files", b""),
    "mark": ("meta", META_MARK),
    "format": ("meta", META_FORMAT),
    "bookie id": ("meta", META_BOOKIE),
    "instance id": ("meta", META_INSTANCE),
    "clean flag": ("meta", META_CLEAN),
    "boot id": ("meta", META_BOOT_ID),
    "integrity flag": ("meta", META_INTEGRITY),
}
KEY_DAMAGES = ("first bit", "cut to half", "one byte more")
INDEX_KEYS = {
    "key of a location page": ("another one's", "missing"),
    "key of a ledger": ("another one's", "missing"),
    "key of the last ledger": (*KEY_DAMAGES, "another one's", "missing"),
    "key of the mark": ("first bit", "missing"),
    "key of the integrity flag": ("first bit", "missing"),
    "key of a journal's row": (*KEY_DAMAGES, "missing"),
    "key of a log's row": (*KEY_DAMAGES, "missing"),
}
DELETION = "deletion of a ledger"
DELETION_DAMAGES = (
    *KEY_DAMAGES,
    "a living ledger's key",
    "a living ledger's key, from an older version",
    "value",
)
VALUE_DAMAGES = ("first byte", "last byte", "cut to half", "zeroed")
VALUE_PLACES = ("killed", "system crashed")

META_PAGES = ("newest meta page", "older meta page")
META_DAMAGES = (*META_FIELDS, "zeroed", "garbage", "of another place", "stale")
DATA_PAGES = (
    "leaf of locations",
    "branch of locations",
    "leaf of ledgers",
    "leaf of the tables",
    "leaf of the free list",
    "leaf of the sum",
)
PAGE_DAMAGES = (
    "page number",
    "page flags",
    "lower bound",
    "upper bound",
    "node offset",
    "node size",
    "key",
    "value",
    "zeroed",
    "garbage",
    "of another place",
)
PAGES_WITH_A_PAST = DATA_PAGES[:2]
"""Kinds of which some page has an earlier version in the same place, in both pictures."""
FILE_DAMAGES = ("cut to half", "cut to nothing", "missing", "garbage")

COOKIES = ("cookie of the journal", "cookie of the ledgers")
COOKIE_DAMAGES = ("magic", "id", "unique id", "state", "cut inside", "zeroed", "missing", "garbage")
SMALL_FILES = ("RESERVE", "FAILED", "LOCK", "lock.mdb")
STOPPED = "STOPPED"
SMALL_DAMAGES = ("missing", "cut to nothing", "garbage")

Damaging = Callable[[bytearray], None]


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix."""

    thing: str
    place: str
    damage: str

    @property
    def picture(self) -> str:
        """The directories that it starts from."""
        if self.place in {"last", "vouched"} and self.thing in KINDS:
            return f"{self.place}-{self.thing}"
        return self.place if self.place in {"stopped", *REMOVED} else "killed"

    @property
    def probe(self) -> int | None:
        """The ledger that the damaged record is about."""
        if self.thing not in KINDS:
            return None
        return probe_ledger("last" if self.place == "vouched" else self.place, self.thing)


def all_cells() -> Iterator[Cell]:
    """Every cell."""
    yield from _record_cells()
    for place in HEADER_PLACES:
        yield from (Cell("file header", place, d) for d in (*HEADER_FIELDS, *HEADER_WHOLE))
    yield from (Cell(FILE, place, "missing") for place in HEADER_PLACES)
    yield from _index_cells()
    for thing in COOKIES:
        yield from (Cell(thing, "killed", damage) for damage in COOKIE_DAMAGES)
    for thing in SMALL_FILES:
        yield from (Cell(thing, "killed", damage) for damage in SMALL_DAMAGES)


def _record_cells() -> Iterator[Cell]:
    for place in RECORD_PLACES:
        # Blocks of a log are large; none of its blocks fits into the place of another.
        missing = {"duplicated", "stale"} if place == "log" else set()
        damages = (*BLOCK_FIELDS, *RECORD_FIELDS, "padding", *WHOLE)
        for kind in KINDS:
            yield from (Cell(kind, place, damage) for damage in damages if damage not in missing)
    for place in LINK_PLACES:
        # A link stands in the first block of its file, so an earlier block is missing. In some
        # files a small block behind it is missing, too.
        missing = {"duplicated", "stale"} if place in {"log", "below"} else {"stale"}
        for damage in (*BLOCK_FIELDS, *RECORD_FIELDS, "nonce", "padding", *WHOLE):
            if damage not in missing:
                yield Cell("link", place, damage)


def _index_cells() -> Iterator[Cell]:
    for thing in INDEX_VALUES:
        for place in VALUE_PLACES:
            yield from (Cell(thing, place, damage) for damage in VALUE_DAMAGES)
    for thing, damages in INDEX_KEYS.items():
        for place in VALUE_PLACES:
            yield from (Cell(thing, place, damage) for damage in damages)
    for place in VALUE_PLACES:
        yield from (Cell(DELETION, place, damage) for damage in DELETION_DAMAGES)
    for place in ("killed", "stopped"):
        for thing in META_PAGES:
            yield from (Cell(thing, place, damage) for damage in META_DAMAGES)
        yield from (Cell("data.mdb", place, damage) for damage in FILE_DAMAGES)
    # A start after an orderly stop reads none of these.
    for thing in DATA_PAGES:
        yield from (Cell(thing, "killed", damage) for damage in PAGE_DAMAGES)
    yield from (Cell(thing, "killed", "stale") for thing in PAGES_WITH_A_PAST)
    for place in REMOVED:
        yield Cell(META_PAGES[0], place, "stale")
    yield from (Cell(STOPPED, "stopped", damage) for damage in SMALL_DAMAGES)


def apply(cell: Cell, root: Path, earlier: Sequence[bytes]) -> None:
    """Damage the directories at `root`, which are those of the cell's picture.

    `earlier` is what the file of the index was after earlier transactions, the newest last.
    """
    if cell.thing in KINDS or cell.thing == "link":
        _damage_record(cell, root)
    elif cell.thing == "file header":
        _damage_file_header(cell, root)
    elif cell.thing == FILE:
        _file_at(cell.place, root).unlink()
    elif cell.thing in INDEX_VALUES:
        _damage_value(cell, root)
    elif cell.thing in INDEX_KEYS:
        _damage_key(cell, root)
    elif cell.thing == DELETION:
        _damage_deletion(cell, root)
    elif cell.thing in META_PAGES or cell.thing in DATA_PAGES:
        _edit(_index_of(root), lambda data: _damage_page(cell, data, earlier))
    else:
        _damage_whole_file(cell, root)


def noise(size: int) -> bytes:
    """Bytes that mean nothing."""
    return random.Random(size).randbytes(size)


def _edit(path: Path, change: Damaging) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def _flip(path: Path, at: int, mask: int = 0x10) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ mask]))


def _put(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def _cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


# --- records and file headers ---------------------------------------------------------------------


def _damage_record(cell: Cell, root: Path) -> None:
    if cell.thing == "link":
        spot = link_of(_file_at(cell.place, root))
    else:
        assert cell.probe is not None
        spot = spot_of(root, cell.thing, cell.probe)
    block, path = spot.block, spot.path
    size = block.end - block.offset
    match cell.damage:
        case "cut before":
            _cut(path, block.offset)
        case "cut inside":
            _cut(path, block.offset + size // 2)
        case "zeroed":
            _put(path, block.offset, bytes(size))
        case "garbage":
            _put(path, block.offset, noise(size))
        case "padding":
            _flip(path, block.end - 1)
        case "duplicated" | "stale" | "of another file":
            # Over all of it: a block of a log is as long as many of a journal.
            other = _another_block(cell.damage, spot, root)
            _put(path, block.offset, (other * (size // len(other)))[:size])
        case field if field in BLOCK_FIELDS:
            _flip(path, block.offset + BLOCK_FIELDS[field])
        case field:
            _flip(path, _place_in_record(field, spot))


def _place_in_record(field: str, spot: Spot) -> int:
    """The byte to flip: of the record itself, or of its packets if it has some."""
    at, record = spot.record_at, spot.record
    (length,) = struct.unpack_from("<I", spot.block.body, at - spot.block.body_offset + 4)
    match field:
        case "record length":
            return at + 4
        case "ids" if isinstance(record, EntriesRecord):
            return spot.block.body_offset + record.payload_offset + 7
        case "ids" | "nonce":
            return at + (8 if field == "ids" else 16)
        case _:
            return int(at + 8 + length - 1)


def _another_block(damage: str, spot: Spot, root: Path) -> bytes:
    """The bytes of a small block from elsewhere."""
    wanted = spot.block.offset
    if damage == "of another file":
        others = [path for path in files_of(root) if path != spot.path]
    else:
        others = [spot.path]
    small = [
        (path, block)
        for path in others
        for block in scan(path)
        if block.end - block.offset == SECTOR_BYTES
        # Of the same file one from before, or any for the first block, which has none before it.
        and (path != spot.path or block.offset < wanted or wanted == FILE_HEADER_SIZE_BYTES)
        and (path, block.offset) != (spot.path, wanted)
    ]
    path, block = small[0] if damage == "stale" else small[-1]
    with path.open("rb") as file:
        file.seek(block.offset)
        return file.read(block.end - block.offset)


def _file_at(place: str, root: Path) -> Path:
    """The file in which the probes of a place stand; ``mark`` is the one that the mark names."""
    if place == "mark":
        number = _mark_number(root)
        return root / "journal" / f"{number:08d}.journal"
    if place == "below":
        return min((root / "journal").glob("*.journal"))
    return spot_of(root, "entries", probe_ledger(place, "entries")).path


def _mark_number(root: Path) -> int:
    store = open_lmdb(str(root / "ledgers" / "index"), 64 * MIB, TABLES)
    try:
        with store.read() as txn:
            return decode_mark(txn.get("meta", META_MARK) or b"").file_number
    finally:
        store.close()


def _damage_file_header(cell: Cell, root: Path) -> None:
    path = _file_at(cell.place, root)
    match cell.damage:
        case "cut inside":
            _cut(path, FILE_HEADER_SIZE_BYTES // 2)
        case "zeroed":
            _put(path, 0, bytes(FILE_HEADER_SIZE_BYTES))
        case "garbage":
            _put(path, 0, noise(FILE_HEADER_SIZE_BYTES))
        case "of another file":
            other = next(item for item in files_of(root) if item != path)
            _put(path, 0, other.read_bytes()[:FILE_HEADER_SIZE_BYTES])
        case field:
            _flip(path, HEADER_FIELDS[field])


# --- the index ------------------------------------------------------------------------------------


def _index_of(root: Path) -> Path:
    return root / "ledgers" / "index" / "data.mdb"


def _damage_value(cell: Cell, root: Path) -> None:
    """Through LMDB, whose own structure and sum stay right: as if memory had been damaged."""
    table, key = INDEX_VALUES[cell.thing]
    if cell.thing == "file row":
        key = file_key(_mark_number(root))
    store = open_lmdb(str(root / "ledgers" / "index"), 64 * MIB, TABLES)
    try:
        with store.write() as txn:
            value = bytearray(txn.get(table, key) or b"")
            assert value, key
            match cell.damage:
                case "first byte":
                    value[0] ^= 0x10
                case "last byte":
                    value[-1] ^= 0x10
                case "cut to half":
                    del value[len(value) // 2 :]
                case _:
                    value[:] = bytes(len(value))
            txn.put(table, key, bytes(value))
    finally:
        store.close()


def _damage_key(cell: Cell, root: Path) -> None:
    """Through LMDB, as a value."""
    store = open_lmdb(str(root / "ledgers" / "index"), 64 * MIB, TABLES)
    try:
        with store.read() as txn:
            last = txn.range("ledgers", b"", b"\xff" * 9, 2**31)[-1][0]
        table, before = {
            "key of a location page": ("locations", page_key(DENSE, 1)),
            "key of a ledger": ("ledgers", ledger_key(DENSE)),
            "key of the last ledger": ("ledgers", last),
            "key of the mark": ("meta", META_MARK),
            "key of the integrity flag": ("meta", META_INTEGRITY),
        }.get(cell.thing, ("files", b""))
        if table == "files":
            place = "log" if cell.thing == "key of a log's row" else "below"
            before = file_key(int(_file_at(place, root).stem))
        with store.write() as txn:
            value = txn.get(table, before) or b""
            assert value, before
            txn.delete(table, before)
            key = bytearray(before)
            match cell.damage:
                case "first bit":
                    key[0] ^= 0x80
                case "another one's":
                    # That of a page, or lower of a ledger, that was never here.
                    key[-1] ^= 0x20
                case "cut to half":
                    del key[len(key) // 2 :]
                case "missing":
                    return
                case _:
                    key.append(0)
            assert txn.get(table, bytes(key)) is None
            txn.put(table, bytes(key), value)
    finally:
        store.close()


def _damage_deletion(cell: Cell, root: Path) -> None:
    """What tells whose pages have yet to go, which a checkpoint of many pages leaves behind."""
    store = open_lmdb(str(root / "ledgers" / "index"), 64 * MIB, TABLES)
    try:
        with store.write() as txn:
            note_deletion(txn, probe_ledger("below", "deleted"))
            ((name, value),) = deletions(txn, 2)
            txn.delete("meta", name)
            key = bytearray(name[len(META_DELETING) :])
            match cell.damage:
                case "first bit":
                    key[0] ^= 0x80
                case "cut to half":
                    del key[len(key) // 2 :]
                case "one byte more":
                    key.append(0)
                case "value":
                    value = bytes([value[0] ^ 0x10]) + value[1:]
                case _:
                    key[:] = ledger_key(DENSE)
            if cell.damage == DELETION_DAMAGES[-2]:
                value = b""
            txn.put("meta", META_DELETING + key, value)
    finally:
        store.close()


def _damage_page(cell: Cell, data: bytearray, earlier: Sequence[bytes]) -> None:
    if cell.thing in META_PAGES:
        newest = newest_meta(bytes(data))
        page = newest if cell.thing == META_PAGES[0] else 1 - newest
        other = 1 - page
    else:
        page, other = _data_page(cell.thing, bytes(data))
    at = page * PAGE_BYTES
    match cell.damage:
        case "zeroed":
            data[at : at + PAGE_BYTES] = bytes(PAGE_BYTES)
        case "garbage":
            data[at : at + PAGE_BYTES] = noise(PAGE_BYTES)
        case "of another place":
            data[at : at + PAGE_BYTES] = data[other * PAGE_BYTES : (other + 1) * PAGE_BYTES]
        case "stale":
            page, before = _earlier_version(cell.thing, page, bytes(data), earlier)
            data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = before
        case field if cell.thing in META_PAGES:
            data[at + META_FIELDS[field]] ^= 0x10
        case field:
            at = _place_in_page(field, bytes(data), page)
            if (cell.thing, field) == ("leaf of the tables", "value"):
                # The root; what stands before it in a leaf of the tables is not used.
                at += 40
            data[at] ^= 0x10


def _earlier_version(
    thing: str, page: int, data: bytes, earlier: Sequence[bytes]
) -> tuple[int, bytes]:
    """A page of this kind, and the newest version of it that is another one."""
    pages = [page]
    if thing in PAGES_WITH_A_PAST:
        tree = tree_of(data, "locations")
        pages = tree.branches if thing.startswith("branch") else tree.leaves
    for old in reversed(earlier):
        for number in pages:
            at = number * PAGE_BYTES
            before = old[at : at + PAGE_BYTES]
            if before not in {b"", data[at : at + PAGE_BYTES]}:
                return number, before
    raise AssertionError(f"no {thing} has an earlier version")


def _place_in_page(field: str, data: bytes, page: int) -> int:
    at = page * PAGE_BYTES
    key, value = nodes_of(data, page)[-1]
    places = {
        "page number": at,
        "page flags": at + 10,
        "lower bound": at + 12,
        "upper bound": at + 14,
        "node offset": at + 17,
        "node size": key - 8,
        "key": value - 1,
        "value": value,
    }
    return places[field]


def _data_page(thing: str, data: bytes) -> tuple[int, int]:
    """The page that is meant, and one of another kind."""
    locations = tree_of(data, "locations")
    match thing:
        case "leaf of locations":
            return locations.leaves[0], locations.leaves[1]
        case "branch of locations":
            return locations.branches[0], locations.leaves[0]
        case "leaf of ledgers":
            return tree_of(data, "ledgers").leaves[0], tree_of(data, "ledgers").leaves[1]
        case "leaf of the tables":
            return tree_of(data, "main").leaves[0], locations.leaves[0]
        case "leaf of the free list":
            return tree_of(data, "free").leaves[0], locations.leaves[0]
        case _:
            return tree_of(data, "sum").leaves[0], locations.leaves[0]


# --- whole files ----------------------------------------------------------------------------------


def _damage_whole_file(cell: Cell, root: Path) -> None:
    paths = {
        "data.mdb": _index_of(root),
        "lock.mdb": root / "ledgers" / "index" / "lock.mdb",
        "cookie of the journal": root / "journal" / "COOKIE",
        "cookie of the ledgers": root / "ledgers" / "COOKIE",
    }
    path = paths.get(cell.thing, root / "ledgers" / cell.thing)
    size = path.stat().st_size if path.exists() else 0
    match cell.damage:
        case "missing":
            path.unlink(missing_ok=True)
        case "zeroed":
            path.write_bytes(bytes(size))
        case "garbage":
            path.write_bytes(noise(size or 100))
        case "cut to nothing":
            path.write_bytes(b"")
        case "cut to half" | "cut inside":
            _cut(path, size // 2)
        case field:
            text = {
                "magic": b"bookie-cookie",
                "id": b'bookie_id="',
                "unique id": b'unique_id="',
                "state": b'state="',
            }[field]
            at = path.read_bytes().index(text) + (0 if field == "magic" else len(text))
            # Another digit or letter, so that the text stays text.
            _flip(path, at, 0x01)
