"""Names, creates, reads and writes journals and entry logs, which are files of blocks.

Journals and entry logs share one sequence of file numbers. So a location (file, offset, size) is
valid for both kinds of files. A file is created under a temporary name, its header is synced, the
file is renamed, and its directory is synced. So after a crash, a file with a final name has a
complete header.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from bookie.env import Buffer, Disk, File, Readable, is_disk_full
from bookie.errors import DiskFullError
from bookie.node.engine.format.blocks import (
    BLOCK_HEADER_SIZE_BYTES,
    FILE_HEADER_SIZE_BYTES,
    BlockHeader,
    FileHeader,
    FileKind,
    body_crc,
    decode_file_header,
    encode_block_header,
    padding,
)

TEMPORARY_SUFFIX = ".tmp"
_SUFFIX = {FileKind.JOURNAL: ".journal", FileKind.ENTRY_LOG: ".log"}
FILE_NUMBER_MAX = 2**32 - 1
"""The largest file number: the rows, the pages and the mark of the index store it in 32 bits."""

_DIGITS_MAX = len(str(FILE_NUMBER_MAX))
OPEN_FILES_MAX = 256


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A file that will not grow further."""

    number: int
    kind: int
    size_bytes: int


def file_name(kind: FileKind, number: int) -> str:
    """Return the file's name, such as ``00000007.journal`` or ``00000007.log``."""
    return f"{number:08d}{_SUFFIX[kind]}"


def parse_file_name(name: str) -> tuple[FileKind, int] | None:
    """Return the kind and the number in a file's name; None for a name of another form."""
    for kind, suffix in _SUFFIX.items():
        stem = name.removesuffix(suffix)
        is_number = stem.isascii() and stem.isdigit() and len(stem) <= _DIGITS_MAX
        if stem != name and is_number and int(stem) <= FILE_NUMBER_MAX:
            return kind, int(stem)
    return None


def create_file(
    disk: Disk, directory: str, header: FileHeader, allocate_bytes: int, *, publish: bool = True
) -> File:
    """Create the file that `header` describes in `directory`, and write the header.

    With `publish`, header and final name are durable on return. Otherwise the file keeps a
    temporary name, and the caller must sync the file and call `publish_file`.

    Raises:
        DiskFullError: there is no room for the file, which is removed again.
        OSError: the device failed.
    """
    path = os.path.join(directory, file_name(header.kind, header.number)) + TEMPORARY_SUFFIX
    file = None
    try:
        file = disk.create(path, allocate_bytes)
        # Without preallocation, a full device refuses this write. The file can then be removed,
        # because no location names it yet.
        file.pwritev([header.encode()], 0)
        if publish:
            file.fdatasync()
    except OSError as error:
        if file is not None:
            file.close()
        if not is_disk_full(error):
            raise
        disk.unlink(path)
        raise DiskFullError(f"no room for a new file in {directory}") from error
    if publish:
        publish_file(disk, directory, header)
    return file


def publish_file(disk: Disk, directory: str, header: FileHeader) -> None:
    """Give a synced file its final name, durably."""
    path = os.path.join(directory, file_name(header.kind, header.number))
    disk.rename(path + TEMPORARY_SUFFIX, path)
    disk.sync_directory(directory)


def read_header(file: Readable) -> FileHeader:
    """Read the header of an open file.

    Raises:
        FormatError: the header is damaged, no bookie wrote the file, or a newer version wrote it.
    """
    return decode_file_header(file.pread(FILE_HEADER_SIZE_BYTES, 0))


class FileTable:
    """Maps file numbers to paths; the most recently read files stay open.

    The event loop adds and removes files. Any thread may open a file without blocking other
    threads.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._paths: dict[int, str] = {}
        self._open: OrderedDict[int, File] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, number: int, path: str) -> None:
        self._paths[number] = path

    def remove(self, number: int) -> None:
        """Remove a file from the table; readers that have the file open can still finish."""
        # Do not close the file: a read thread may use the file. The file is closed when its last
        # reference is gone.
        with self._lock:
            self._paths.pop(number, None)
            self._open.pop(number, None)

    def path(self, number: int) -> str | None:
        return self._paths.get(number)

    def numbers(self) -> list[int]:
        return sorted(self._paths)

    def opened(self, number: int) -> File | None:
        """Return file `number` if it is open, else None; this call never waits for the device."""
        with self._lock:
            file = self._open.get(number)
            if file is not None:
                self._open.move_to_end(number)
        return file

    def get(self, number: int) -> File:
        """Return the file `number`, and open it if it is not open.

        Raises:
            FileNotFoundError: the file was removed; look up the entry again.
        """
        file = self.opened(number)
        if file is not None:
            return file
        path = self._paths.get(number)
        if path is None:
            raise FileNotFoundError(errno.ENOENT, f"file number {number} is gone")
        file = self._disk.open(path)
        with self._lock:
            if number in self._paths:
                file = self._open.setdefault(number, file)
            if len(self._open) > OPEN_FILES_MAX:
                self._open.popitem(last=False)
        return file

    def close(self) -> None:
        """Close every file; no thread may be reading."""
        for file in self._open.values():
            file.close()
        self._open.clear()


@dataclass(slots=True)
class BlockFile:
    """A file that is being written, and the offset of its end; one thread at a time may use it."""

    file: File
    header: FileHeader
    end: int = FILE_HEADER_SIZE_BYTES
    """The offset in the file at which the next block begins."""
    sequence: int = 0
    """The sequence number of the last block; the next journal file continues the numbers."""

    @property
    def body_offset(self) -> int:
        return self.end + BLOCK_HEADER_SIZE_BYTES

    def encode(self, body: Sequence[Buffer], records: int, durable_upto: int) -> list[Buffer]:
        """Encode the next block; `durable_upto` is the offset up to which the file is synced."""
        nonce, sequence = self.header.nonce, self.sequence + 1
        length = sum(map(len, body))
        crc = body_crc(nonce, sequence, body)
        header = BlockHeader(sequence, durable_upto, length, records, crc)
        rest = padding(BLOCK_HEADER_SIZE_BYTES + length, self.header.alignment)
        return [encode_block_header(nonce, header), *body, rest]

    def write(self, block: Sequence[Buffer], zeros: bytes = b"") -> int:
        """Write the block that `encode` returned, without a sync; return the size of the block.

        Behind the block, the call writes `zeros`, which later blocks replace.

        Raises:
            OSError: the device failed or has no room; `end` does not change.
        """
        buffers = [*block, zeros] if zeros else block
        size = self.file.pwritev(buffers, self.end) - len(zeros)
        self.end += size
        self.sequence += 1
        return size
