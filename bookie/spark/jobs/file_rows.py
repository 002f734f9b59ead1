"""Reads the rows of files, each file by its own header or schema, and gives reasons for bad rows.

========== ======================================================================================
format     value
========== ======================================================================================
text       the line
binaryFile the content
json       the line, which is a JSON object; with ``multiLine``, each object of the file's array
csv        a JSON object with the names in the header, in their order
parquet    a JSON object with the file's columns, in their order
========== ======================================================================================

If a file's path has a directory ``name=value`` below the root, ``name`` becomes a column of its
rows, except for text and binary files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (programs for Spark say F)
from pyspark.sql.types import DecimalType, StringType, StructField, StructType

from bookie.spark.jobs.ingest_plan import HEADER, IngestPlan
from bookie.spark.jobs.moving import OURS, TOO_LARGE, first_of, judged, quoted, size_verdict, union
from bookie.spark.jobs.reasons import (
    CORRUPT,
    csv_misfit,
    csv_texts,
    decimal_misfit,
    is_one_value,
    json_misfit,
    json_parts,
)

ROW = "row"
"""The kind of bad rows whose content does not fit, for example text in a column of numbers."""

_PATH = "_metadata.file_path"

_AS_JSON = {
    # By default Spark omits columns that are null, and cuts times after their milliseconds.
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}

_NOT_BLANK = r"[^\x00-\x20]"

_MANY_DIGITS = r"[0-9][0-9.]{38,}|[0-9][0-9.]{15,}[eE]"
"""Matches a number that may lose digits when it is parsed and written as text again."""


@dataclass(frozen=True, slots=True)
class _Source:
    """The settings that are the same for all files of a batch."""

    spark: SparkSession
    plan: IngestPlan
    partitions: tuple[str, ...]
    """The names of columns whose values are in the files' paths."""
    size_bytes_max: int

    def reader(self, **options: str) -> DataFrameReader:
        """Return a reader that takes paths literally, not as patterns."""
        reader = self.spark.read.options(**options).option("__globPaths__", "false")
        root = root_of(self.plan.files)
        return reader.option("basePath", root) if self.partitions else reader

    def schema(self, fields: Iterable[StructField]) -> StructType:
        """Return `fields` plus the columns in the paths.

        The columns in the paths are text, because otherwise Spark would guess their types.
        """
        return StructType([*fields, *(StructField(one, StringType()) for one in self.partitions)])

    def judged(
        self,
        frame: DataFrame,
        value: Column,
        raw: Column,
        verdicts: Mapping[str, Column],
        key: Column | None = None,
    ) -> DataFrame:
        """Return the rows in the form of `moving.judged`.

        For bad rows, the quarantine gets the content `raw`.
        """
        row = {"value": value.cast("binary")}
        if key is not None:
            row["key"] = key.cast("string").cast("binary")
        file = F.col(_PATH)
        size = size_verdict(row, F.lit(self.size_bytes_max), may_be_late=False)
        aside = {"file": file, "value": raw.cast("binary")}
        return judged(frame, row, aside, file, {**verdicts, TOO_LARGE: size})


def rows_of_files(
    spark: SparkSession, paths: Sequence[str], plan: IngestPlan, size_bytes_max: int
) -> DataFrame | None:
    """Return the rows of the files in the form of `bookie.spark.jobs.moving.judged`.

    The result is None if there are no files or rows.
    """
    if not paths:
        return None
    partitions: tuple[str, ...] = ()
    if plan.file_format in ("json", "csv", "parquet"):
        partitions = _partition_columns(spark, paths, plan)
    source = _Source(spark, plan, partitions, size_bytes_max)
    if plan.file_format == "text":
        text = source.reader(**plan.reading()).format("text").load(list(paths))
        return source.judged(text, F.col("value"), F.col("value"), {})
    if plan.file_format == "binaryFile":
        binary = source.reader().format("binaryFile").load(list(paths))
        return source.judged(binary, F.col("content"), F.col("content"), {})
    if plan.file_format == "json":
        return _json_rows(source, paths)
    frames = (_csv_frames if plan.file_format == "csv" else _parquet_frames)(source, paths)
    return union(frames) if frames else None


def root_of(files: str) -> str:
    """Return the deepest directory of a path pattern that comes before its first wildcard."""
    if not (glob := re.search(r"[*?\[{\\]", files)):
        return files
    return files[: glob.start()].rpartition("/")[0] or "/"


def _partition_columns(
    spark: SparkSession, paths: Sequence[str], plan: IngestPlan
) -> tuple[str, ...]:
    """Return the names of columns in the files' paths, such as ``day`` in ``root/day=1/file``."""
    is_flat = plan.finding().get("recursiveFileLookup", "false").lower() == "true"
    if is_flat or not any("=" in path for path in paths):
        return ()
    reader = spark.read.option("basePath", root_of(plan.files)).option("__globPaths__", "false")
    return tuple(
        name for name in reader.format("text").load(list(paths)).columns if name != "value"
    )


# -- headers ---------------------------------------------------------------------------------------


def header_problem(names: Sequence[str], partitions: Sequence[str], plan: IngestPlan) -> str | None:
    """Return the reason why a file with these columns is refused; None if the file is accepted."""
    folded = [name.lower() for name in (*names, *partitions)]
    for name in names:
        if not name:
            return "the header has a column without a name"
        if name.lower() == CORRUPT or name.lower().startswith(OURS):
            return f"a column cannot be called {name}; rename it"
        if folded.count(name.lower()) > 1:
            return f"the column {name} is there twice"
    there = [*names, *partitions]
    if plan.key is not None and plan.key not in there:
        return f"there is no column {plan.key}, which is to be the key; there are {_list(there)}"
    if plan.schema is None or plan.header_check == "any":
        return None
    unknown = [name for name in there if name not in plan.schema.names]
    missing = [name for name in plan.schema.names if name not in there]
    parts = [f"the schema has no column {_list(unknown)}"] if unknown else []
    parts += [f"the file has no column {_list(missing)}"] if missing else []
    return " and ".join(parts) or None


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)


def _csv_headers(source: _Source, paths: Sequence[str]) -> dict[tuple[str, ...], list[str]]:
    """Return the files grouped by header; omit files without a line, which have no rows."""
    found: dict[tuple[str, ...], list[str]] = {}
    options = {**source.plan.reading(), "header": "false"}
    for some in _alike(source, paths):
        reader = source.spark.read.options(**options).option("__globPaths__", "false")
        first = reader.csv(some[0]).first()
        if first is not None:
            names = tuple("" if name is None else str(name) for name in first)
            found.setdefault(names, []).extend(some)
    return found


def _alike(source: _Source, paths: Sequence[str]) -> list[list[str]]:
    """Group files with the same first line, so that only one file of each group must be parsed."""
    plan = source.plan
    options = plan.reading()
    if len(paths) == 1 or plan.is_multiline or {"encoding", "charset"} & options.keys():
        return [[path] for path in paths]
    separator = {"lineSep": options["lineSep"]} if "lineSep" in options else {}
    is_line = F.col("value").rlike(_NOT_BLANK)  # Spark's CSV parser also skips blank lines
    if comment := options.get("comment"):
        is_line &= ~F.col("value").startswith(comment)
    lines = source.spark.read.options(**separator).option("__globPaths__", "false")
    firsts = (
        lines.format("text")
        .load(list(paths))
        .where((F.col("_metadata.file_block_start") == 0) & is_line)
        .select(F.col(_PATH).alias("file"), "value", F.monotonically_increasing_id().alias("at"))
        .groupBy("file")
        .agg(F.min_by("value", "at").alias("first"))
        .collect()
    )
    first_lines = {unquote(row["file"]): row["first"] for row in firsts}
    groups: dict[str, list[str]] = {}
    for path in paths:
        # An empty file has no first line, so it is a group of its own. A path that Spark spells in
        # an unexpected way is a group of its own, too.
        groups.setdefault(first_lines.get(path, f"\n{path}"), []).append(path)
    return list(groups.values())


# -- CSV -------------------------------------------------------------------------------------------


def _csv_frames(source: _Source, paths: Sequence[str]) -> list[DataFrame]:
    plan = source.plan
    if not plan.has_header:
        assert plan.schema is not None, "the plan was checked"
        names = tuple(name for name in plan.schema.names if name not in source.partitions)
        return [_csv_rows(source, names, paths)]
    frames = []
    for names, some in _csv_headers(source, paths).items():
        problem = header_problem(names, source.partitions, plan)
        if problem is None:
            frames.append(_csv_rows(source, names, some))
        else:
            frames.append(_refused_csv(source, some, problem))
    return frames


def _csv_reader(source: _Source) -> DataFrameReader:
    options = {
        "header": "true",
        **source.plan.reading(),
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": CORRUPT,
    }
    return source.reader(**options)


def _refused_csv(source: _Source, paths: Sequence[str], problem: str) -> DataFrame:
    """Return the rows of files with a wrong header as bad rows, each with its original text."""
    # A row of several columns does not fit into one column, so Spark reports the row as corrupt.
    fields = [StructField("__bookie_only", StringType()), StructField(CORRUPT, StringType())]
    frame = _csv_reader(source).schema(source.schema(fields)).csv(list(paths))
    raw = F.coalesce(quoted(CORRUPT), F.col("__bookie_only"), F.lit(""))
    return source.judged(frame, raw, raw, {HEADER: F.lit(problem)}, _no_key(source))


def _csv_rows(source: _Source, names: Sequence[str], paths: Sequence[str]) -> DataFrame:
    plan = source.plan
    declared = {one.name: one.dataType for one in plan.schema or ()}
    kinds = {name: declared.get(name, StringType()) for name in (*names, *source.partitions)}
    # Spark would round a decimal that has too many digits.
    fields = [
        StructField(name, StringType() if isinstance(kind, DecimalType) else kind)
        for name, kind in kinds.items()
        if name in names
    ]
    read = source.schema([*fields, StructField(CORRUPT, StringType())])
    frame = _csv_reader(source).schema(read).csv(list(paths))
    texts = csv_texts(quoted(CORRUPT), fields, plan.reading()).alias("__bookie_texts")
    frame = frame.select("*", texts)
    columns = {name: quoted(name).try_cast(kind) for name, kind in kinds.items()}
    for name in declared.keys() - kinds.keys():
        columns[name] = F.lit(None).cast(declared[name])
    raw = quoted(CORRUPT)
    reasons = [csv_misfit(raw, F.col("__bookie_texts"), fields, quoted)]
    for name, kind in kinds.items():
        if isinstance(kind, DecimalType):
            reasons.append(decimal_misfit(quoted(name), name, kind))
        elif name in source.partitions:
            bad = quoted(name).isNotNull() & columns[name].isNull()
            reasons.append(F.when(bad, F.lit(f"{name} is no {kind.simpleString()}")))
    as_text = _object({name: quoted(name) for name in kinds})
    key = None if plan.key is None else columns[plan.key]
    verdicts = {ROW: first_of(*reasons)}
    return source.judged(frame, _object(columns), F.coalesce(raw, as_text), verdicts, key)


def _object(columns: Mapping[str, Column]) -> Column:
    return F.to_json(F.struct(*(one.alias(name) for name, one in columns.items())), _AS_JSON)


def _no_key(source: _Source) -> Column | None:
    return None if source.plan.key is None else F.lit(None)


# -- Parquet ---------------------------------------------------------------------------------------


def _parquet_frames(source: _Source, paths: Sequence[str]) -> list[DataFrame]:
    groups: dict[str, tuple[StructType, list[str]]] = {}
    for path in paths:
        reader = source.spark.read.options(**source.plan.reading())
        schema = reader.option("__globPaths__", "false").parquet(path).schema
        groups.setdefault(schema.json(), (schema, []))[1].append(path)
    frames = []
    for schema, some in groups.values():
        reader = source.reader(**source.plan.reading()).schema(source.schema(schema.fields))
        frame = reader.parquet(*some)
        problem = header_problem(schema.names, source.partitions, source.plan)
        problem = problem or _type_problem(schema, source.plan)
        columns = {name: quoted(name) for name in (*schema.names, *source.partitions)}
        value = _object(columns)
        key = _no_key(source)
        if problem is None and source.plan.key is not None:
            key = columns[source.plan.key]
        verdicts = {HEADER: F.lit(problem).cast("string")}
        frames.append(source.judged(frame, value, value, verdicts, key))
    return frames


def _type_problem(schema: StructType, plan: IngestPlan) -> str | None:
    declared = {one.name: one.dataType.simpleString() for one in plan.schema or ()}
    for one in schema.fields:
        wanted, kind = declared.get(one.name), one.dataType.simpleString()
        if wanted is not None and wanted != kind:
            return f"the column {one.name} is {kind}, and the schema says {wanted}"
    return None


# -- JSON ------------------------------------------------------------------------------------------


def _json_rows(source: _Source, paths: Sequence[str]) -> DataFrame:
    plan = source.plan
    reading = {name: one for name, one in plan.reading().items() if name == "lineSep"}
    if plan.is_multiline:
        reading = {"wholetext": "true"}
    schema = source.schema([StructField("value", StringType())])
    frame = source.reader(**reading).schema(schema).format("text").load(list(paths))
    frame = frame.where(F.col("value").rlike(_NOT_BLANK))
    reasons = []
    if plan.is_multiline:
        frame = _elements(frame)
        loses = F.col("__bookie_whole").rlike(_MANY_DIGITS)
        reasons.append(F.when(loses, F.lit("the file may have a number that loses digits")))
    frame = frame.withColumn("__bookie_variant", F.expr("try_parse_json(value)"))
    frame = frame.withColumn("__bookie_keys", F.expr("json_object_keys(value)"))
    keys = F.col("__bookie_keys")
    text = F.col("value")
    is_object = F.col("__bookie_variant").isNotNull() & keys.isNotNull() & is_one_value(text)
    reasons.append(F.when(~is_object, F.lit("it is no JSON object")))
    verdicts = {}
    names = [*([] if plan.schema is None else plan.schema.names), *source.partitions]
    if plan.schema is not None:
        found, texts = json_parts(text, plan.schema, plan.reading())
        frame = frame.withColumns({"__bookie_found": found, "__bookie_texts": texts})
        parts = F.col("__bookie_found"), F.col("__bookie_texts")
        reasons.append(json_misfit(text, *parts, plan.schema))
        if plan.header_check != "any":
            known = F.array(*map(F.lit, names)).cast("array<string>")
            unknown = F.array_except(keys, known)
            says = F.concat(F.lit("the schema has no column "), F.array_join(unknown, ", "))
            verdicts[HEADER] = F.when(F.size(unknown) > 0, says)
    value, key = F.col("value"), None
    if source.partitions:
        both = F.array_intersect(keys, F.array(*map(F.lit, source.partitions)))
        says = F.concat(F.array_join(both, ", "), F.lit(" is in the object and in the path"))
        reasons.append(F.when(F.size(both) > 0, says))
        value = _with_partitions(source.partitions, keys)
    if plan.key is not None:
        key, problem = _json_key(plan.key, source.partitions)
        reasons.append(problem)
    ordered = {ROW: first_of(*reasons), **verdicts}
    return source.judged(frame, value, F.col("value"), ordered, key)


def _elements(frame: DataFrame) -> DataFrame:
    """Return a row for each object in the files; a file has one object or an array of objects."""
    document = F.expr("try_parse_json(value)")
    is_array = F.expr("schema_of_variant(__bookie_document) LIKE 'ARRAY%'")
    parts = F.when(is_array, F.expr("try_variant_get(__bookie_document, '$', 'array<variant>')"))
    parts = F.coalesce(parts, F.array("__bookie_document"))
    frame = frame.withColumn("__bookie_document", document)
    one = F.explode(parts).alias("__bookie_one")
    kept = [name for name in frame.columns if name not in ("value", "__bookie_document")]
    frame = frame.select(*map(quoted, kept), F.col("value").alias("__bookie_whole"), one)
    return frame.withColumn("value", F.coalesce(F.to_json("__bookie_one"), F.col("__bookie_whole")))


def _with_partitions(partitions: Sequence[str], keys: Column) -> Column:
    """Return the JSON text of an object: columns from the file's path, then the object's fields."""
    added = _object({name: quoted(name) for name in partitions})
    comma = F.when(F.size(keys) > 0, F.lit(",")).otherwise(F.lit(""))
    rest = F.substr(F.ltrim("value"), F.lit(2))
    return F.concat(F.regexp_replace(added, r"\}$", ""), comma, rest)


def _json_key(name: str, partitions: Sequence[str]) -> tuple[Column, Column]:
    """Return the value of the field `name` as a record key, and a reason if digits may be lost.

    The reason is null if the text is exact.
    """
    if name in partitions:
        return quoted(name), F.lit(None).cast("string")
    quote = '"' if "'" in name else "'"
    path = f"$[{quote}{name}{quote}]"
    found = F.try_variant_get("__bookie_variant", path, "variant")
    is_double = F.coalesce(F.schema_of_variant(found) == "DOUBLE", F.lit(False))
    says = F.lit(f"{name}, which is to be the key, is a number that loses digits as text")
    return F.try_variant_get("__bookie_variant", path, "string"), F.when(is_double, says)
