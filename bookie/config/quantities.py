"""Types of settings with a special text form: sizes in bytes, and sets of labels.

A size is an integer in code. A file, variable or flag may also give a size with a binary unit:
``"256MiB"``. Labels are a mapping in code, and may also be given as text: ``"zone=a,rack=r1"``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

_SIZE = re.compile(r"\s*(\d+)\s*(B|KiB|MiB|GiB|TiB)?\s*")
_LABEL = re.compile(r"[A-Za-z0-9._/-]{1,63}")


def parse_size(value: object) -> object:
    """Convert text such as ``"8MiB"`` to 8388608 bytes; return any other value unchanged.

    Raises:
        ValueError: the text is not a size.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError("must be a number of bytes, or one with a unit B, KiB, MiB, GiB or TiB")
    return int(match[1]) * UNITS[match[2] or "B"]


def format_size(size: int) -> str:
    """Return a size as exact text with the largest possible unit: ``8MiB`` for 8388608."""
    unit = "B"
    for name, factor in UNITS.items():
        if size and size % factor == 0:
            unit = name
    return f"{size // UNITS[unit]}{unit}"


def parse_labels(value: object) -> object:
    """Convert text such as ``"zone=a,rack=r1"`` to a mapping; check all names and values.

    Raises:
        ValueError: a name or value is not a label.
    """
    if isinstance(value, str):
        pairs = [pair.partition("=") for pair in value.split(",") if pair.strip()]
        value = {name.strip(): text.strip() for name, _, text in pairs}
    if isinstance(value, Mapping):
        for part in (*value.keys(), *value.values()):
            if not isinstance(part, str) or not _LABEL.fullmatch(part):
                raise ValueError(
                    f"has the name or value {part!r}; letters, digits and ._/- are allowed"
                )
    return value


def format_labels(labels: Mapping[str, str]) -> str:
    """Return labels as text that `parse_labels` accepts, sorted by name: ``rack=r1,zone=a``."""
    return ",".join(f"{name}={labels[name]}" for name in sorted(labels))


Size = Annotated[int, BeforeValidator(parse_size)]
"""A number of bytes, also accepted as text such as ``8MiB``."""

Labels = Annotated[Mapping[str, str], BeforeValidator(parse_labels)]
"""A mapping of label names to values. Each name and value has 1 to 63 letters, digits or ``._/-``.
"""
