"""Small records as canonical JSON: one line of ASCII with sorted keys, a format name and a version.

::

    {"format":"bookie-…","version":1,…}

Equal values are encoded to equal bytes. A reader ignores unknown keys. So a new field needs no new
version, if older readers may safely ignore it. For any other change, increase the version number,
so that older readers refuse the record.

:func:`encode` and :func:`decode` write and check the format name and the version.
:class:`JsonFields` reads typed values; its errors name the wrong field.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bookie.errors import FormatError, NewerFormatError
from bookie.ids import MAX_ID

_TAKEN = frozenset({"format", "version"})


def encode(format_name: str, version: int, fields: Mapping[str, object]) -> bytes:
    """Encode a record; values are text, numbers, booleans, None, or lists and maps of values."""
    assert not _TAKEN & fields.keys()
    record = {"format": format_name, "version": version, **fields}
    text = json.dumps(
        record, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":")
    )
    return text.encode("ascii")


def decode(format_name: str, newest_version: int, data: bytes) -> JsonFields:
    """Return the fields of a `format_name` record whose version is at most `newest_version`.

    Raises:
        FormatError: the bytes are not JSON, or have another format or a newer version.
    """
    try:
        record = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not a {format_name} record: {error}") from error
    if not isinstance(record, dict) or record.get("format") != format_name:
        raise FormatError(f"not a {format_name} record: its format has another name")
    fields = JsonFields(format_name, record)
    version = fields.integer("version", minimum=1)
    if version > newest_version:
        raise NewerFormatError(
            f"the {format_name} record was written by a newer version: format {version}, "
            f"and this program reads up to {newest_version}"
        )
    return fields


@dataclass(frozen=True, slots=True)
class JsonFields:
    """A JSON object whose values are read by name and expected type.

    Every method that reads a field raises FormatError if the field is missing or of another type;
    the message names the field.
    """

    where: str
    values: Mapping[str, object]

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "text")
        return value

    def integer(self, name: str, *, minimum: int = -(2**63), maximum: int = MAX_ID) -> int:
        """Return the field `name`, a whole number in `minimum` … `maximum` (inclusive)."""
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name, "a whole number")
        if not minimum <= value <= maximum:
            raise FormatError(
                f"{self.where}: {name} is {value}, which is not in {minimum} … {maximum}"
            )
        return value

    def optional_integer(
        self, name: str, *, minimum: int = -(2**63), maximum: int = MAX_ID
    ) -> int | None:
        """Return the field `name`, a whole number, or None if the field is null or missing."""
        if self.values.get(name) is None:
            return None
        return self.integer(name, minimum=minimum, maximum=maximum)

    def number(self, name: str) -> float:
        """Return the field `name`, which may be any finite number, as a float."""
        value = self.values.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(name, "a number")
        # Python reads 1e999 as infinity, which no record may contain.
        if not abs(value) <= sys.float_info.max:
            raise self._wrong(name, "a number of a sensible size")
        return float(value)

    def boolean(self, name: str) -> bool:
        value = self.values.get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        values = self._list(name)
        if not all(isinstance(value, str) for value in values):
            raise self._wrong(name, "a list of texts")
        return tuple(str(value) for value in values)

    def objects(self, name: str) -> Iterator[JsonFields]:
        for index, value in enumerate(self._list(name)):
            if not isinstance(value, dict):
                raise self._wrong(name, "a list of objects")
            yield JsonFields(f"{self.where}: {name}[{index}]", value)

    def rows(self, name: str, *, width: int) -> Iterator[list[int | None]]:
        """Yield the rows of the field `name`; each row has `width` whole numbers or nulls."""
        for row in self._list(name):
            if not isinstance(row, list) or len(row) != width:
                raise self._wrong(name, f"a list of rows of {width}")
            if not all(value is None or type(value) is int for value in row):
                raise self._wrong(name, "rows of whole numbers or null")
            yield row

    def inner(self, name: str) -> JsonFields:
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return JsonFields(f"{self.where}: {name}", value)

    def names(self) -> list[str]:
        return list(self.values)

    def _list(self, name: str) -> list[object]:
        value = self.values.get(name)
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return value

    def _wrong(self, name: str, wanted: str) -> FormatError:
        problem = "is missing" if name not in self.values else f"is not {wanted}"
        return FormatError(f"{self.where}: {name} {problem}")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")
