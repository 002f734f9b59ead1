"""The archive of Java's classes: its path, and the Java options that read or write it.

Without the archive, each job needs 6 s of processor time to find, check and link Spark's classes.
The archive contains the linked classes in the form that Java has in memory. ``bookie spark
prepare`` writes the archive once for each installation of Spark. Later local sessions read the
archive, which has about 190 MB.

Java starts without the archive if the archive was written by another version of Java, or for other
jars of Spark. But Java crashes on a truncated archive. So an archive gets its final name only after
Java has written the whole archive.

Source: JEP 350, dynamic archives of application classes.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pyspark

QUIET = "-Xlog:cds*=error"
"""The option that suppresses Java's warnings about an unusable archive."""

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
"""The permissions that let other users change a file."""


def archive_path() -> Path:
    """Return the path of the archive for this installation of Spark.

    The path is in the user's cache directory. Other users must not be able to write to the archive,
    because Java runs the classes in the archive.
    """
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    installation = hashlib.sha256(str(pyspark.__path__).encode()).hexdigest()[:12]
    return Path(home, "bookie", f"spark-{pyspark.__version__}-{installation}.jsa")


def reading_options() -> list[str]:
    """Return Java's options to read the archive; [] if the archive is unusable.

    The archive cannot be used if it is missing, if another user owns the file or its directory or
    may write there, or if its path contains a space.
    """
    path = archive_path()
    try:
        found = [path.stat(), path.parent.stat()]
    except OSError:
        return []
    is_safe = all(one.st_uid == os.getuid() and not one.st_mode & OTHERS_WRITE for one in found)
    # A path with a space would need quotes, which Spark's scripts do not pass on unchanged.
    if not is_safe or any(letter.isspace() for letter in str(path)):
        return []
    return [f"-XX:SharedArchiveFile={path}", QUIET]


def writing_options(path: Path) -> list[str]:
    """Return Java's options that write the archive to `path` when the session ends."""
    return [f"-XX:ArchiveClassesAtExit={path}", QUIET]
