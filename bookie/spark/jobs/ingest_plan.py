"""The settings of an ingest: its files, their format, and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from pyspark.sql.types import StructType

from bookie.errors import BadRequestError
from bookie.spark.jobs.moving import ON_BAD, OURS, check_choice
from bookie.spark.jobs.reasons import CORRUPT, require_flat

FILE_FORMATS = ("text", "json", "csv", "parquet", "binaryFile")

HEADER_CHECKS = (*ON_BAD, "any")

HEADER = "header"
"""The kind of bad rows that come from a file, or a JSON object, with wrong columns."""

BATCH_BYTES = 1 << 30
"""The bytes that a batch reads by default; a larger file is a batch of its own."""

_FINDING = [
    "maxFilesPerTrigger",
    "latestFirst",
    "fileNameOnly",
    "maxFileAge",
    "maxCachedFiles",
    "discardCachedInputRatio",
    "cleanSource",
    "sourceArchiveDir",
    "pathGlobFilter",
    "recursiveFileLookup",
]
"""Spark's options that choose the files, for all formats."""

_TIMES = ["dateFormat", "timestampFormat", "timestampNTZFormat", "locale", "timeZone"]

_OF_CSV = [
    *("sep", "delimiter", "lineSep", "encoding", "charset", "header", "multiLine", "comment"),
    *("quote", "escape", "charToEscapeQuoteEscaping", "unescapedQuoteHandling"),
    *("ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "maxColumns", "maxCharsPerColumn"),
    *("nullValue", "emptyValue", "nanValue", "positiveInf", "negativeInf"),
    *("enableDateTimeParsingFallback", *_TIMES),
]

_READING: dict[str, list[str]] = {
    "text": ["lineSep", "wholetext"],
    "json": ["lineSep", "multiLine", *_TIMES],
    "csv": _OF_CSV,
    "parquet": ["datetimeRebaseMode", "int96RebaseMode"],
    "binaryFile": [],
}
"""Spark's options for reading a file, without the options that drop or guess data."""


@dataclass(frozen=True, slots=True)
class IngestPlan:
    """The settings of an ingest: its files, their format, and options."""

    files: str
    """A directory or pattern of any file system that Spark knows."""
    file_format: str
    """The format of the files, one of `FILE_FORMATS`."""
    key: str | None = None
    """The name of the column whose text is a record's key."""
    schema: StructType | None = None
    """The columns that all files must have, by name; None means each file's own columns."""
    header_check: str = "fail"
    """One of `HEADER_CHECKS`: the treatment of files that have other columns."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Spark's options for files of this format."""
    max_bytes: int | None = None
    """The bytes that a batch reads; None means `BATCH_BYTES`."""

    def validate(self) -> None:
        """Check the plan before anything is read.

        Raises:
            BadRequestError: a part of the plan is wrong.
        """
        if self.file_format not in FILE_FORMATS:
            raise BadRequestError(f"files are {', '.join(FILE_FORMATS)}, not {self.file_format}")
        check_choice("--header-check", self.header_check, HEADER_CHECKS)
        has_columns = self.file_format in ("json", "csv", "parquet")
        if self.schema is not None and not has_columns:
            raise BadRequestError(f"a file of {self.file_format} has no columns; omit --schema")
        if self.key is not None and not has_columns:
            raise BadRequestError(f"a file of {self.file_format} has no columns; omit --key")
        if self.schema is not None and self.key is not None and self.key not in self.schema.names:
            raise BadRequestError(
                f"there is no column {self.key}; there are {', '.join(self.schema.names)}"
            )
        for name in [] if self.schema is None else self.schema.names:
            if name.lower() == CORRUPT or name.lower().startswith(OURS):
                raise BadRequestError(f"a column cannot be called {name}; rename it")
        if self.file_format == "csv" and not self.has_header and self.schema is None:
            raise BadRequestError("files of CSV without a header need --schema")
        if self.file_format == "csv" and self.schema is not None:
            require_flat(self.schema)
        self._check_options()

    @property
    def has_header(self) -> bool:
        """True if the first row of a CSV file has the names of the columns."""
        return self.reading().get("header", "true").lower() == "true"

    @property
    def is_multiline(self) -> bool:
        return self.reading().get("multiLine", "false").lower() == "true"

    def finding(self) -> dict[str, str]:
        """Return the options for Spark's stream that finds new files."""
        given = self._given(_FINDING)
        # By default, Spark silently ignores files that are more than a week older than the newest
        # file.
        found = {"maxFileAge": "36500d"}
        if "maxFilesPerTrigger" not in given:
            found["maxBytesPerTrigger"] = str(self.max_bytes or BATCH_BYTES)
        return found | given

    def reading(self) -> dict[str, str]:
        return self._given(_READING[self.file_format])

    def _given(self, names: Sequence[str]) -> dict[str, str]:
        """Return the user's options whose names are in `names`, spelled as in `names`."""
        known = {name.lower(): name for name in names}
        return {
            known[name.lower()]: value
            for name, value in self.options.items()
            if name.lower() in known
        }

    def _check_options(self) -> None:
        names = [*_FINDING, *_READING[self.file_format]]
        known = {name.lower(): name for name in names}
        for name in self.options:
            if name.lower() in known:
                continue
            near = get_close_matches(name.lower(), known, 1)
            hint = f"; do you mean {known[near[0]]}?" if near else f"; there are {', '.join(names)}"
            raise BadRequestError(
                f"ingest does not take the option {name} for {self.file_format}{hint}"
            )
        if self.max_bytes is not None and "maxfilespertrigger" in map(str.lower, self.options):
            raise BadRequestError(
                "give either --max-bytes-per-trigger or the option maxFilesPerTrigger, not both"
            )
