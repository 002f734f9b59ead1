"""Writes files with keys and tokens so that other users can never read them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Create or replace a file atomically.

    The permissions are set before the content is written. A replaced file keeps its owner and its
    group, if this user may set both. So after root renews a key, a bookie of another user can still
    read the key.

    Args:
        path: the path of the file.
        content: the new content, which is synced before it replaces the former content. After a
            crash of the machine, the file may have the former content again.
        mode: the permissions of the file; the former permissions are ignored.

    Raises:
        OSError: the file cannot be written; a former file is unchanged.
    """
    temporary = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            former = path.stat()
            os.fchown(file.fileno(), former.st_uid, former.st_gid)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
