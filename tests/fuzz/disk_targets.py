"""Files and rows on a bookie's disks.

Most formats carry checksums, so damaged bytes are refused at once. The targets called *sealed* put
the right checksum on the changed bytes. They show what the code behind the checksum does.

Whole directories are damaged by `tests/matrix/test_corruption_fuzz.py`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bookie.daemon.inspection import read_cookie
from bookie.daemon.local.layout import load_layout
from bookie.entry.checksum import crc32c
from bookie.env.kv import open_lmdb
from bookie.errors import ChecksumError, ConfigurationError, CorruptionError, FormatError
from bookie.node.engine import scan
from bookie.node.engine.files import parse_file_name, read_header
from bookie.node.engine.format import blocks, index_rows, pages, record_arrays, records
from bookie.node.engine.format.blocks import FileHeader, FileKind
from tests.fuzz.target import Target, vectors
from tests.fuzz.wire_targets import KEY, LAC_PACKET, LEDGER, batch

NONCE = bytes(range(16))
HEADER = FileHeader(FileKind.JOURNAL, 3, NONCE, 512)
CRC_BYTES = 4


def entries(**options: Any) -> bytes:
    one = batch(**options)
    return records.encode_entries_head(one, crc32c(bytes(one.payload)), False) + bytes(one.payload)


OTHERS = [
    records.encode_ledger(LEDGER, KEY),
    records.encode_fence(LEDGER, KEY),
    records.encode_lac(LEDGER, LAC_PACKET),
    records.encode_deleted(LEDGER, 1700000000000),
    records.encode_limbo(LEDGER, in_limbo=True),
]
BODIES = [
    [entries(count=1)],
    [entries(count=1)] * 5,
    [entries(), entries(gap=True), entries(count=300, size=0)],
    [*OTHERS, entries()],
    [],
]


class MemoryFile:
    """A file as the scanner reads it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def pread(self, size: int, offset: int) -> bytes:
        assert size >= 0
        assert offset >= 0
        return self._data[offset : offset + size]

    def size(self) -> int:
        return len(self._data)


def block(sequence: int, body: bytes, count: int, durable: int = 0, alignment: int = 512) -> bytes:
    crc = blocks.body_crc(NONCE, sequence, [body])
    header = blocks.BlockHeader(sequence, durable, len(body), count, crc)
    data = blocks.encode_block_header(NONCE, header) + body
    return data + blocks.padding(len(data), alignment)


def journal() -> bytes:
    link = records.encode_link(2, NONCE, 8192)
    bodies = [[link, *BODIES[0]], *BODIES, *[[entries(count=1)]] * 9]
    return HEADER.encode() + b"".join(
        block(number, b"".join(parts), len(parts)) for number, parts in enumerate(bodies, 5)
    )


def counted(parts: Sequence[bytes]) -> bytes:
    """The input of `parsed`: the count of records, and the body of a block."""
    return bytes((len(parts),)) + b"".join(parts)


def parsed(data: bytes) -> Any:
    """Parse a body as objects and as arrays; both must take or refuse the same bytes."""
    count, body = (data[0] if data else 0), memoryview(data[1:])
    found: Any
    try:
        found = list(records.parse_records(body, count))
    except FormatError:
        found = None
    try:
        arrays = record_arrays.parse_arrays(body, count)
    except FormatError:
        assert found is None, "the arrays refuse what the objects take"
        raise
    assert found is not None, "the arrays take what the objects refuse"
    assert arrays.offsets.tolist() == [at for at, _ in found]
    batches = [one.batch for _, one in found if isinstance(one, records.EntriesRecord)]
    assert arrays.entry_ids.tolist() == [i for one in batches for i in one.entry_ids().tolist()]
    assert arrays.sizes.tolist() == [size for one in batches for size in one.sizes.tolist()]
    assert arrays.ledger_ids.tolist() == [one.ledger_id for one in batches for _ in one.sizes]
    others = [one for _, one in found if not isinstance(one, records.EntriesRecord)]
    assert list(arrays.others) == others
    return found


def scanned(data: bytes) -> Any:
    """Read a file to its end, as a start does, and beyond its first damage."""
    file = MemoryFile(data)
    header = read_header(file)
    start, sequence = blocks.FILE_HEADER_SIZE_BYTES, 0
    seen = list(scan.blocks(file, header, start, sequence))
    runs = list(scan.runs(file, header, start, sequence))
    assert [one.end for one in seen[-1:]] == [run.end for run in runs[-1:]]
    for group in scan.grouped(runs):
        group.parse()
    end = runs[-1].end if runs else start
    later = scan.next_valid(file, header, end, sequence)
    scan.left_by_no_crash(file, header, end, sequence, room_after=True)
    for _ in scan.later_headers(file, header, start, sequence):
        pass
    scan.link_of(file, header)
    return [len(run) for run in runs], later and later.offset


def sealed_scan(data: bytes) -> Any:
    """Put the bytes into the bodies of blocks whose checksums are right."""
    counts = data[:3].ljust(3, b"\1")
    body = b"".join(block(n, data[3:], count) for n, count in enumerate(counts, 1))
    return scanned(HEADER.encode() + body)


def sealed_block_headers(data: bytes) -> Any:
    """Put the checksum of a header on each block."""
    head = data[: blocks.BLOCK_HEADER_SIZE_BYTES - CRC_BYTES]
    head = head + crc32c(head, crc32c(NONCE)).to_bytes(CRC_BYTES, "little")
    rest = data[len(head) :]
    one = blocks.parse_block_header(head, NONCE)
    file = MemoryFile(HEADER.encode() + head + rest)
    found = blocks.parse_block_headers(memoryview(head + rest), 512, NONCE)
    assert one is not None or found is None
    assert len(list(scan.blocks(file, HEADER, 4096, 0))) <= 200
    return one


def sealed_file_header(data: bytes) -> Any:
    head = data[:4092].ljust(4092, b"\0")
    return blocks.decode_file_header(head + crc32c(head).to_bytes(CRC_BYTES, "little"))


def sealed(key: bytes, decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Put the checksum of a row on its body."""
    return lambda body: decode(crc32c(body, crc32c(key)).to_bytes(CRC_BYTES, "little") + body)


def bodies(encoded: Sequence[bytes]) -> list[bytes]:
    return [one[CRC_BYTES:] for one in encoded]


def under(key: bytes, encoded: Sequence[bytes]) -> list[bytes]:
    """The rows as they would be written under another key."""
    return [sealed(key, bytes)(body) for body in bodies(encoded)]


PAGE_KEY = pages.page_key(LEDGER, 3)


def page(data: bytes) -> Any:
    numbers, slots = pages.decode_pages([(PAGE_KEY, data)])
    assert slots.shape == (1, pages.SLOTS_PER_PAGE, pages.COLUMNS)
    padded = data[CRC_BYTES:].ljust(len(pages.EMPTY_SLOTS), b"\0")
    for entry_id in (0, 63, 2**63 - 1):
        pages.slot_of(padded, entry_id)
    return numbers, slots


def keys(data: bytes) -> Any:
    found = []
    for parse in (pages.parse_page_key, index_rows.parse_ledger_key, index_rows.parse_file_key):
        try:
            found.append(parse(data))
        except FormatError:
            continue
    return found


def index_row(name: str, key: bytes, decode: Any, row: str, encode: Any) -> list[Target]:
    seeds = vectors("index_rows", "row", row)
    return [
        Target(f"index.{name}", decode, under(key, seeds), (FormatError, ChecksumError), encode),
        Target(f"index.{name}_sealed", sealed(key, decode), bodies(seeds)),
    ]


# ---- files that are opened by name


class _Room:
    """A directory for the targets whose parsers open a file by its name."""

    def __init__(self) -> None:
        self.path = Path()

    @contextmanager
    def around(self) -> Iterator[None]:
        self.path = Path(tempfile.mkdtemp(prefix="bookie-fuzz-"))
        try:
            yield
        finally:
            shutil.rmtree(self.path)


ROOM = _Room()
TABLES = ("rows", "pages")
MAP_BYTES = 1 << 20


def lmdb_file() -> bytes:
    """A small index, as the engine's store writes it."""
    with tempfile.TemporaryDirectory() as directory:
        with closing(open_lmdb(directory, MAP_BYTES, TABLES)) as store, store.write() as rows:
            for table in TABLES:
                pairs = [(b"%04d" % number, b"v" * number * 3) for number in range(60)]
                rows.put_many(table, pairs)
                rows.put(table, b"large", b"w" * 9000)
        return (Path(directory) / "data.mdb").read_bytes()


def opened_lmdb(data: bytes) -> Any:
    """Check the file and open it, as a start does after a crash, and read all of it."""
    for path in ROOM.path.iterdir():
        path.unlink()
    (ROOM.path / "data.mdb").write_bytes(data)
    with closing(open_lmdb(str(ROOM.path), MAP_BYTES, TABLES)) as store, store.read() as rows:
        return [rows.range(table, b"", b"\xff", 1000) for table in TABLES]


def cookie_file(data: bytes) -> Any:
    (ROOM.path / "COOKIE").write_bytes(data)
    return read_cookie(ROOM.path)


def layout_file(data: bytes) -> Any:
    (ROOM.path / "cluster.json").write_bytes(data)
    return load_layout(ROOM.path)


LAYOUT = (
    b'{"version": 1, "metadata_uri": "local:///d/metadata", "members": [{"id": "b1", "port": 1,'
    b' "http_port": 2}]}'
)

TARGETS: Sequence[Target] = (
    Target(
        "files.header",
        blocks.decode_file_header,
        vectors("file_headers"),
        encode=FileHeader.encode,
    ),
    Target(
        "files.header_sealed", sealed_file_header, [HEADER.encode()[:60]], encode=FileHeader.encode
    ),
    Target("files.block_header_sealed", sealed_block_headers, [journal()[4096:8192]]),
    Target(
        "files.records",
        parsed,
        [counted(parts) for parts in BODIES] + [counted([one]) for one in OTHERS],
    ),
    Target("files.journal", scanned, [journal()], (FormatError,), examples=500),
    Target(
        "files.journal_sealed",
        sealed_scan,
        [bytes((len(parts),)) * 3 + b"".join(parts) for parts in BODIES],
        examples=1000,
    ),
    *index_row(
        "ledger_row",
        index_rows.ledger_key(LEDGER),
        partial(index_rows.decode_ledger_row, LEDGER),
        "ledger",
        partial(index_rows.encode_ledger_row, LEDGER),
    ),
    *index_row(
        "file_row",
        index_rows.file_key(3),
        partial(index_rows.decode_file_row, 3),
        "file",
        partial(index_rows.encode_file_row, 3),
    ),
    *index_row("mark", b"", index_rows.decode_mark, "mark", index_rows.encode_mark),
    Target(
        "index.page", page, under(PAGE_KEY, vectors("index_pages")), (FormatError, ChecksumError)
    ),
    Target("index.page_sealed", sealed(PAGE_KEY, page), bodies(vectors("index_pages"))),
    Target("index.keys", keys, [PAGE_KEY, index_rows.ledger_key(LEDGER), index_rows.file_key(3)]),
    Target(
        "index.lmdb_file",
        opened_lmdb,
        [lmdb_file()],
        (CorruptionError,),
        examples=300,
        around=ROOM.around,
    ),
    Target(
        "files.name",
        lambda data: parse_file_name(data.decode("utf-8", "surrogateescape")),
        [b"00000007.journal", b"00000007.log"],
        (),
    ),
    Target(
        "files.cookie",
        cookie_file,
        vectors("cookies"),
        (FormatError, ConfigurationError),
        examples=500,
        around=ROOM.around,
    ),
    Target(
        "files.layout",
        layout_file,
        [LAYOUT],
        (ConfigurationError,),
        examples=500,
        around=ROOM.around,
    ),
)
