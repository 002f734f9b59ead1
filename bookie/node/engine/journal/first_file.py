"""Creates the first journal file of each start, and removes unused files of failed starts."""

from __future__ import annotations

from contextlib import closing

from bookie.config import StorageSettings
from bookie.env import Disk, File
from bookie.errors import ConfigurationError, DiskFullError
from bookie.node.engine.directories import Directories
from bookie.node.engine.files import create_file
from bookie.node.engine.format.blocks import FILE_HEADER_SIZE_BYTES, FileHeader
from bookie.node.engine.format.index_rows import Mark
from bookie.node.engine.journal.group_commit import SMALL_FILES_BYTES
from bookie.node.engine.scan import SCAN_BYTES


def create_first_journal(
    disk: Disk, settings: StorageSettings, directories: Directories, header: FileHeader
) -> tuple[File, int]:
    """Create a journal file; return the file and its size, which is small on a full device.

    The smaller sizes let a bookie start on a full device, where the bookie can still serve reads.

    Raises:
        ConfigurationError: the device has no room even for the smallest journal file.
        OSError: the device failed.
    """
    size = min(settings.journal_allocate_bytes, settings.journal_file_bytes_max)
    smaller = sorted({min(size, limit) for limit in SMALL_FILES_BYTES})
    while True:
        try:
            return create_file(disk, directories.journal, header, size), size
        except DiskFullError as error:
            directories.release_reserve()
            if not smaller:
                raise ConfigurationError(
                    f"the device of {directories.journal} is full: not even "
                    f"{size >> 10} KiB are left for the journal"
                ) from error
            size = smaller.pop()


def remove_unused(disk: Disk, journals: dict[int, str], mark: Mark | None) -> None:
    """Unlink unused files left by starts that failed at their commit; remove them from `journals`.

    Without this removal, repeated failed starts would fill the device. The oldest unused file is
    kept: if the previous file was cut, the unused file proves that the journal continued.
    """
    if mark is None:
        return
    found = [number for number in sorted(journals) if number >= mark.file_number]
    while len(found) > 1 and all(_is_unused(disk, journals[number]) for number in found[-2:]):
        disk.unlink(journals.pop(found.pop()))


def _is_unused(disk: Disk, path: str) -> bool:
    """True if the file has bytes after its header, and all bytes after the header are zeros."""
    with closing(disk.open(path)) as file:
        size, offset = file.size(), FILE_HEADER_SIZE_BYTES
        if size <= offset:
            return False
        while offset < size:
            data = file.pread(min(SCAN_BYTES, size - offset), offset)
            if any(data):
                return False
            offset += len(data)
        return True
