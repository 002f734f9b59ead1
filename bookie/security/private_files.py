"""Writes files with keys and tokens atomically and durably; other users can never read them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bookie.errors import BadRequestError

_GROUP_BITS = 0o070


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file to write."""

    path: Path
    content: bytes
    mode: int
    keeps_group: bool = False
    """True if the group permissions of the replaced file are added to `mode`."""


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory until the block ends; wait while another command has the lock.

    Raises:
        OSError: the directory cannot be opened.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked_existing(directory: Path, remedy: str) -> Iterator[None]:
    """Lock a directory that must exist, until the block ends.

    Args:
        directory: the directory.
        remedy: a sentence without its full stop, which tells how to make the directory.

    Raises:
        BadRequestError: the directory does not exist; the message ends with `remedy`.
        OSError: the directory cannot be opened.
    """
    try:
        with locked(directory):
            yield
    except FileNotFoundError as error:
        if directory.exists():
            raise
        raise BadRequestError(f"{directory} does not exist; {remedy}") from error


def write_new(files: Sequence[NewFile]) -> None:
    """Create the files durably, in the order of `files`.

    Raises:
        BadRequestError: one of the files exists already; no file was created or changed.
        OSError: a file cannot be written; the files before it in `files` may already have been
            created.
    """
    written: list[Path] = []
    with _staged(files, [file.path for file in files]) as staged:
        for file, temporary in staged:
            try:
                os.link(temporary, file.path)
            except FileExistsError as error:
                for path in written:
                    path.unlink()
                raise BadRequestError(f"{file.path} exists already") from error
            written.append(file.path)


def replace_files(files: Sequence[NewFile]) -> None:
    """Replace each file atomically, in the order of `files`.

    All new content is durable before the first file is replaced. A file keeps its owner and its
    group, if the current user is permitted to set both. So after root renews a key, a bookie of
    another user can still read the key. For a symbolic link, the link stays and its target is
    replaced.

    Raises:
        OSError: a file cannot be written; the files before it in `files` may already have been
            replaced.
    """
    targets = [file.path.resolve() for file in files]
    with _staged(files, targets) as staged:
        for (_, temporary), target in zip(staged, targets, strict=True):
            temporary.replace(target)


@contextlib.contextmanager
def _staged(
    files: Sequence[NewFile], targets: Sequence[Path]
) -> Iterator[list[tuple[NewFile, Path]]]:
    """Write each file durably to a temporary file beside its target, for the ``with`` block.

    After the block, sync the directories. In any case, remove the remaining temporary files.
    """
    staged: list[tuple[NewFile, Path]] = []
    try:
        for file, target in zip(files, targets, strict=True):
            temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
            staged.append((file, temporary))
            _write(temporary, target, file)
        yield staged
        for directory in {target.parent for target in targets}:
            _sync(directory)
    finally:
        for _, temporary in staged:
            temporary.unlink(missing_ok=True)


def _write(temporary: Path, target: Path, file: NewFile) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(temporary, flags, file.mode), "wb") as opened:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            former = target.stat()
            os.fchown(opened.fileno(), former.st_uid, former.st_gid)
            if file.keeps_group:
                os.fchmod(opened.fileno(), file.mode | former.st_mode & _GROUP_BITS)
        opened.write(file.content)
        opened.flush()
        os.fsync(opened.fileno())


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
