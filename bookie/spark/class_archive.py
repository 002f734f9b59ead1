"""The path of the archive of Java's classes, and Java's options to read or write the archive.

Without the archive, each job needs 6 s of processor time to find, check and link Spark's classes.
The archive holds the linked classes, as they are in memory. ``bookie spark prepare`` writes the
archive once for each installation of Spark. Later local sessions read the archive. Its size is
about 190 MB.

Java compares the archive with its own version and with Spark's jars. If they differ, Java starts
without the archive. But Java crashes on a truncated archive. So an archive gets its final name only
after Java has written the whole archive.

Source: JEP 350, dynamic archives of application classes.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pyspark

QUIET = "-Xlog:cds*=error"
"""Java says nothing about an archive that it does not use."""


def archive_path() -> Path:
    """Return the path of the archive for this installation of Spark.

    Only the user can write there, because Java runs what the archive holds.
    """
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    installation = hashlib.sha256(str(pyspark.__path__).encode()).hexdigest()[:12]
    return Path(home, "bookie", f"spark-{pyspark.__version__}-{installation}.jsa")


def reading_options() -> list[str]:
    """Return Java's options to read the archive; [] if it is missing or another user's."""
    path = archive_path()
    try:
        found = path.stat()
    except OSError:
        return []
    # A path with a space would need quotes, which Spark's scripts treat in their own way.
    if found.st_uid != os.getuid() or any(letter.isspace() for letter in str(path)):
        return []
    return [f"-XX:SharedArchiveFile={path}", QUIET]


def writing_options(path: Path) -> list[str]:
    """Return Java's options for a session that writes an archive to `path` at its end."""
    return [f"-XX:ArchiveClassesAtExit={path}", QUIET]
