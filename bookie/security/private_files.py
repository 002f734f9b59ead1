"""Files of keys and tokens, written so that nobody else sees them, not even for a moment."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Write a file; a reader sees the former content or the new one as a whole.

    The file has its permissions before it has content. It keeps its owner and its group, as far as
    this user may set them: a bookie that runs as another user can still read its key after root
    has renewed it.

    Args:
        path: the file.
        content: the new content, durable when this returns.
        mode: the permissions, whatever the former file had.

    Raises:
        OSError: the file cannot be written; the former one stays.
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
