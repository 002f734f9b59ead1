"""Cookies: records that bind a bookie's directories to its id and its cluster.

The metadata store and every directory of the bookie hold a cookie with the same identity. If a
directory was exchanged or lost, its cookie differs or is missing. A bookie with an exchanged or
lost directory must not start, because the bookie could answer that acknowledged entries do not
exist.

A cookie is ASCII text: the line ``bookie-cookie 1``, then one ``key=value`` line for each field, in
the order shown here. Each value is JSON on one line.

::

    bookie-cookie 1
    bookie_id="bookie-1"
    instance_id="…"
    journal_dirs=["/var/lib/bookie/journal"]
    ledger_dirs=["/var/lib/bookie/ledgers"]
    state="READY"
    unique_id="…"
    incarnation="…"
    state_number=7
    is_settled=true
    is_in_doubt=false

The last four fields were added in later versions. A cookie omits each of these four fields while
the field has its default value. So cookies of older versions stay valid.
"""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass

from bookie.errors import FormatError, NewerFormatError
from bookie.ids import is_valid_bookie_id
from bookie.metadata.json_record import JsonFields

_MAGIC = "bookie-cookie"
_VERSION = 1
_FIRST_LINE = re.compile(rf"{_MAGIC} ([1-9][0-9]{{0,8}})", re.ASCII)


class CookieState(enum.Enum):
    """The progress of a bookie's first start; READY means that all directories have the cookie."""

    NEW = "NEW"
    READY = "READY"


@dataclass(frozen=True, slots=True)
class Cookie:
    """The identity of a bookie, and facts about the state of its directories.

    `unique_id` is a random id that is created at the first start on empty directories.
    """

    bookie_id: str
    journal_dirs: tuple[str, ...]
    ledger_dirs: tuple[str, ...]
    instance_id: str
    unique_id: str
    state: CookieState
    incarnation: str = ""
    """Random id, renewed when the bookie may have lost acknowledged data; empty in old cookies."""
    state_number: int = 0
    """A number that increases at each start and stop, and regularly in between."""
    is_settled: bool = True
    """False in a directory's cookie while the metadata store's cookie may still have the previous
    `state_number`."""
    is_in_doubt: bool = False
    """True if the bookie may lack entries of its ledgers; valid only in the metadata store's
    cookie."""

    def differences(self, other: Cookie) -> list[str]:
        """Return the names of the identity fields in which this cookie and `other` differ."""
        pairs = (
            ("bookie id", self.bookie_id, other.bookie_id),
            ("journal directories", self.journal_dirs, other.journal_dirs),
            ("ledger directories", self.ledger_dirs, other.ledger_dirs),
            ("instance id", self.instance_id, other.instance_id),
            ("unique id", self.unique_id, other.unique_id),
        )
        return [name for name, mine, theirs in pairs if mine != theirs]


def encode_cookie(cookie: Cookie) -> bytes:
    """Encode the cookie as text."""
    values: dict[str, object] = {
        "bookie_id": cookie.bookie_id,
        "instance_id": cookie.instance_id,
        "journal_dirs": list(cookie.journal_dirs),
        "ledger_dirs": list(cookie.ledger_dirs),
        "state": cookie.state.value,
        "unique_id": cookie.unique_id,
    }
    added: dict[str, tuple[object, object]] = {
        "incarnation": (cookie.incarnation, ""),
        "state_number": (cookie.state_number, 0),
        "is_settled": (cookie.is_settled, True),
        "is_in_doubt": (cookie.is_in_doubt, False),
    }
    values |= {name: value for name, (value, default) in added.items() if value != default}
    lines = [f"{_MAGIC} {_VERSION}"]
    lines += [f"{key}={json.dumps(value)}" for key, value in values.items()]
    return ("\n".join(lines) + "\n").encode("ascii")


def decode_cookie(data: bytes) -> Cookie:
    """Decode the cookie in `data`.

    Raises:
        FormatError: the data is not a cookie, is damaged, or was written by a newer version.
    """
    try:
        first, *lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise FormatError("not a bookie cookie: it is not text") from error
    match = _FIRST_LINE.fullmatch(first)
    if match is None:
        raise FormatError(f"not a bookie cookie: it starts with {first[:40]!r}")
    if int(match[1]) > _VERSION:
        raise NewerFormatError(
            f"the cookie was written by a newer version: format {match[1]}, "
            f"and this program reads up to {_VERSION}"
        )
    if not lines or lines.pop() != "":
        raise FormatError("the cookie is damaged: its last line is cut off")
    fields = JsonFields("cookie", dict(_parse_line(line) for line in lines))
    if len(fields.values) != len(lines):
        raise FormatError("the cookie is damaged: a field stands in it twice")
    bookie_id = fields.text("bookie_id")
    if not is_valid_bookie_id(bookie_id):
        raise FormatError(f"the cookie is damaged: {bookie_id!r} cannot be a bookie's id")
    try:
        state = CookieState(fields.text("state"))
    except ValueError as error:
        raise FormatError(f"the cookie is damaged: {error}") from error
    return Cookie(
        bookie_id=bookie_id,
        journal_dirs=fields.texts("journal_dirs"),
        ledger_dirs=fields.texts("ledger_dirs"),
        instance_id=fields.text("instance_id"),
        unique_id=fields.text("unique_id"),
        state=state,
        incarnation=fields.text("incarnation") if "incarnation" in fields.values else "",
        state_number=fields.optional_integer("state_number", minimum=0) or 0,
        is_settled=fields.boolean("is_settled") if "is_settled" in fields.values else True,
        is_in_doubt=fields.boolean("is_in_doubt") if "is_in_doubt" in fields.values else False,
    )


def _parse_line(line: str) -> tuple[str, object]:
    key, _, value = line.partition("=")
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the cookie is damaged: its line {line[:40]!r}") from error
