"""Changes of valid inputs. Hypothesis and seeded loops both choose the numbers of an `Edit`."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

SIZE_MAX = 256 * 1024
"""An edit that would make a larger input is left out."""

EDITS_MAX = 4
"""Most inputs with more changes are refused at their first byte."""


class Edit(NamedTuple):
    """One change of an input. Any three numbers make one."""

    kind: int
    at: int
    value: int


PIECES: Sequence[bytes] = (
    b"",
    b"\0",
    b"\xff" * 4,
    b"\xff" * 8,
    b"\x7f" + b"\xff" * 7,
    b"\xff\xff\xff\x7f",
    b"\xff" * 9 + b"\x01",  # the largest varint
    b"\xff" * 10 + b"\x01",  # one that is too long
    b"\x80" * 12 + b"\0",
    b"\x62\x00",
    b"\x7a\x80\x80\x80\x80\x08",
    b"\x0b\x0c",  # a group, which proto3 does not have
    b"-1",
    b"1e999",
    b"-0",
    b"1_0",
    b"9" * 20,
    b"9" * 5000,
    b"0" * 5000,
    b"NaN",
    b"Infinity",
    b"null",
    b"true",
    b'"',
    b'"\\ud800"',
    b"\\u0000",
    b"\xc2\xb2",  # a digit for `str.isdigit`, not for `int`
    b"\xd9\xa3",  # a digit for `int`, not in ASCII
    b"\xed\xa0\x80",
    b"\xe2\x80\xa8",
    b"\x85",
    b"\n",
    b"\r\n",
    b"\t",
    b"=",
    b"/",
    b"//",
    b"..",
    b"#",
    b"%",
    b"%00",
    b"::",
    b"[",
    b"]",
    b",",
    b"@",
    b"[" * 6000,
    b'{"a":' * 6000,
    b"a" * 600,
    b"\xe2\x82\xac" * 200,
)

VALUES: Sequence[Any] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**32,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63) - 1,
    10**30,
    0.5,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "x",
    "\ud800",
    "\x00",
    "²",
    "a" * 600,
    "9" * 5000,
    [],
    [[]],
    [None],
    {},
    {"": None},
    [1, 2, 3, 4, 5, 6],
    [[None] * 6],
    [["x"] * 6],
    [{}],
)

KINDS = 12

EDIT_BYTES = 7


def edits_of(octets: bytes) -> list[Edit]:
    """Read edits from any bytes, which hypothesis draws and shortens fast."""
    edits = []
    for start in range(0, len(octets), EDIT_BYTES):
        part = octets[start : start + EDIT_BYTES].ljust(EDIT_BYTES, b"\0")
        at, value = int.from_bytes(part[1:4], "big"), int.from_bytes(part[4:], "big")
        edits.append(Edit(part[0], at, value))
    return edits


def edited(data: bytes, edits: Sequence[Edit], seeds: Sequence[bytes]) -> bytes:
    """Return an input with changes, one after the other."""
    for edit in edits:
        changed = _edited(data, edit, seeds)
        if len(changed) <= SIZE_MAX:
            data = changed
    return data


def _edited(data: bytes, edit: Edit, seeds: Sequence[bytes]) -> bytes:
    kind, at, value = edit.kind % KINDS, edit.at % (len(data) + 1), abs(edit.value)
    end = min(len(data), at + value % 40)
    piece = PIECES[value % len(PIECES)]
    match kind:
        case 0 if at < len(data):  # flip a bit
            return data[:at] + bytes((data[at] ^ 1 << value % 8,)) + data[at + 1 :]
        case 1:
            return data[:at]
        case 2:  # insert
            return data[:at] + piece + data[at:]
        case 3:  # overwrite
            return data[:at] + piece + data[at + len(piece) :]
        case 4:  # in place of some bytes
            return data[:at] + piece + data[end:]
        case 5:  # splice with another
            other = seeds[value % len(seeds)]
            return data[:at] + other[value % (len(other) + 1) :]
        case 6:  # twice
            return data[:end] + data[at:]
        case 7:  # very often
            return data[:at] + data[at:end] * (value % 3000) + data[end:]
        case 8:
            return data[:at] + data[end:]
        case 9 if at < len(data):
            return data[:at] + bytes((value % 256,)) + data[at + 1 :]
        case _:
            return _other_json(data, edit.at, value)


def _other_json(data: bytes, at: int, value: int) -> bytes:
    """Change one value of a JSON record, or one field of one that has a line for each field."""
    lines = data.split(b"\n")
    for step in range(len(lines)):
        number = (step + at) % len(lines)
        name, equals, text = lines[number].partition(b"=")
        if not equals or b'"' in name:
            name, equals, text = b"", b"", lines[number]
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        lines[number] = name + equals + json.dumps(_replaced(found, at, value)).encode()
        return b"\n".join(lines)
    return data


def _replaced(found: Any, at: int, value: int) -> Any:
    if isinstance(found, dict) and found and at % 9:
        name = sorted(found)[at % len(found)]
        if value % 11 == 0:
            return {key: one for key, one in found.items() if key != name}
        return {**found, name: _replaced(found[name], at // 9, value)}
    if isinstance(found, list) and found and at % 9:
        place = at % len(found)
        if value % 11 == 0:
            return [*found, *found[place:]]
        return [*found[:place], _replaced(found[place], at // 9, value), *found[place + 1 :]]
    return VALUES[value % len(VALUES)]


def drawn(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return an input: mostly a seed with a few changes, sometimes any bytes."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.randrange(200))
    octets = rng.randbytes(EDIT_BYTES * rng.randrange(1, EDITS_MAX + 1))
    return edited(rng.choice(seeds), edits_of(octets), seeds)
