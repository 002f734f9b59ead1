"""Where the archive of Java's classes lies, and the options with which Java reads or writes it.

Java takes 6 s of a processor to find, check and link Spark's classes, in each job anew. The archive
holds them as they are in memory. ``bookie spark prepare`` makes it, once for each installation of
Spark, and local sessions read it from then on. It has about 190 MB.

Java compares the archive with its own version and with Spark's jars. If they differ, Java starts
without the archive. But Java crashes on an archive that is cut off. So an archive gets its name
only after Java has written it whole.

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
    """Return Java's options for a session; none if there is no archive that can be trusted."""
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
