"""Reads and writes small text files on Spark's file systems: `s3a:`, `hdfs:`, local directories.

A session in this process uses Hadoop's file system API, which takes milliseconds for a file. A
client of Spark Connect cannot use this API. Such a client reads and writes each file as a frame,
which takes about a second.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (programs for Spark say F)

_NOT_THERE = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")
"""Spark's names of the errors for a missing or an empty directory."""


class SmallFiles(ABC):
    """Reads and writes small files; the function `small_files` returns an object for a session."""

    @abstractmethod
    def texts(self, path: str) -> dict[str, str]:
        """Return the text of a file, or of each file in a directory, by file name; {} if none."""

    def texts_of(self, directories: Sequence[str]) -> list[str]:
        """Return the texts of all files in these directories; each directory must have a file."""
        return [text for one in directories for text in self.texts(one).values()]

    @abstractmethod
    def has_any(self, path: str, ending: str) -> bool:
        """True if a directory has, at any depth, a file whose name ends with `ending`."""

    @abstractmethod
    def write(self, path: str, text: str, *, replaces: bool = False) -> None:
        """Create the directory `path` with one file, which contains the line `text`.

        With `replaces`, a crash can leave no directory at all, because Hadoop's file systems have
        no common way to replace a directory. If a text must survive such a crash, write the new
        text to a second directory first.

        Raises:
            FileExistsError: the directory exists, and `replaces` is not set.
        """


def small_files(spark: SparkSession) -> SmallFiles:
    """Return an object that reads and writes small files by a session, also by Spark Connect."""
    return _HadoopFiles(spark) if hasattr(spark, "_jsparkSession") else FrameFiles(spark)


def load_if_there(
    spark: SparkSession, path: str, file_format: str, ending: str
) -> DataFrame | None:
    """Return a frame of the files below `path` whose names end with `ending`; None if no files."""
    reader = spark.read.option("recursiveFileLookup", "true").option("pathGlobFilter", f"*{ending}")
    try:
        frame = reader.format(file_format).load(path)
        _ = frame.schema  # Spark Connect looks for the files only now
    except AnalysisException as error:
        if error.getCondition() in _NOT_THERE:
            return None
        raise
    return frame


class FrameFiles(SmallFiles):
    """Reads and writes small files as frames, which works in every session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def texts(self, path: str) -> dict[str, str]:
        try:
            frame = self._spark.read.text(path, wholetext=True)
            rows = frame.select(F.col("_metadata.file_name"), F.col("value")).collect()
        except AnalysisException as error:
            if error.getCondition() in _NOT_THERE:
                return {}
            raise
        return {row["file_name"]: row["value"] for row in rows}

    def texts_of(self, directories: Sequence[str]) -> list[str]:
        rows = self._spark.read.text(list(directories), wholetext=True).select("value").collect()
        return [row["value"] for row in rows]

    def has_any(self, path: str, ending: str) -> bool:
        frame = load_if_there(self._spark, path, "binaryFile", ending)
        return frame is not None and bool(frame.select("path").limit(1).collect())

    def write(self, path: str, text: str, *, replaces: bool = False) -> None:
        line = self._spark.range(0, 1, 1, 1).select(F.lit(text).alias("value"))
        try:
            line.write.mode("overwrite" if replaces else "error").text(path)
        except AnalysisException as error:
            if error.getCondition() == "PATH_ALREADY_EXISTS":
                raise FileExistsError(path) from error
            raise


class _HadoopFiles(SmallFiles):
    """Reads and writes small files by Hadoop's file system API in the session's JVM."""

    def __init__(self, spark: SparkSession) -> None:
        session: Any = spark
        self._jvm = session.sparkContext._jvm
        self._conf = session._jsparkSession.sessionState().newHadoopConf()

    def texts(self, path: str) -> dict[str, str]:
        files, at = self._at(path)
        return {
            str(one.getPath().getName()): self._read(files, one.getPath())
            for one in (files.listStatus(at) if files.exists(at) else ())
            if one.isFile() and not str(one.getPath().getName()).startswith((".", "_"))
        }

    def has_any(self, path: str, ending: str) -> bool:
        files, at = self._at(path)
        return any(str(one.getPath().getName()).endswith(ending) for one in _below(files, at))

    def write(self, path: str, text: str, *, replaces: bool = False) -> None:
        files, directory = self._at(path)
        if files.exists(directory) and not replaces:
            raise FileExistsError(path)
        # Write to a temporary directory and rename it, so that a crash during the write leaves no
        # file with half a text.
        _, beside = self._at(f"{path}.{uuid.uuid4()}")
        stream = files.create(self._in(beside, "part-0.txt"), False)
        try:
            stream.write(bytearray(f"{text}\n".encode()))
        finally:
            stream.close()
        if replaces:
            files.delete(directory, True)
        is_renamed = files.rename(beside, directory)
        if not is_renamed and not files.exists(directory):
            raise OSError(f"{beside.toString()} cannot be renamed to {path}")
        # If another process has just created `path`, many file systems move the renamed directory
        # into `path`.
        inside = self._in(directory, beside.getName())
        if not is_renamed or files.exists(inside):
            files.delete(inside if is_renamed else beside, True)
            raise FileExistsError(path)

    def _at(self, path: str) -> tuple[Any, Any]:
        at = self._jvm.org.apache.hadoop.fs.Path(path)
        return at.getFileSystem(self._conf), at

    def _in(self, directory: Any, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(directory, name)

    def _read(self, files: Any, at: Any) -> str:
        stream = files.open(at)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()


def _below(files: Any, at: Any) -> Iterator[Any]:
    """Yield the files at any depth of a directory; none if the directory does not exist."""
    if not files.exists(at):
        return
    found = files.listFiles(at, True)
    while found.hasNext():
        yield found.next()
