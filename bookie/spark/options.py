"""Parses and checks options, which Spark passes as text. The case of option names does not matter.

Spark converts option names to lower case. A wrong option raises an error as soon as the data frame
is made. Messages spell an option as the documentation does. An unknown option is an error; the
message names the most similar known option.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from bookie.errors import BadRequestError

SPARKS_OWN = ("checkpointlocation", "provider", "owner", "queryname")
"""Options that Spark adds by itself."""

_BYTE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10}
_BYTE_UNITS |= {"m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20}
_BYTE_UNITS |= {"g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30}

_SECOND_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class SparkOptions:
    """The options of a read or write, by name; each `take` method also marks its option as known.

    An option may have aliases, such as Kafka's name for it. If a user gives an option under two
    names, an error is raised.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): str(value) for name, value in given.items()}
        self._known: list[str] = []

    def take(self, name: str, *aliases: str) -> str | None:
        """Return the text of an option; None if the option is not given."""
        names = (name, *aliases)
        self._known += names
        found = [one for one in names if one.lower() in self._given]
        if len(found) > 1:
            raise BadRequestError(f"the options {found[0]} and {found[1]} mean the same; give one")
        return self._given[found[0].lower()] if found else None

    def take_choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """Return the option's value in lower case, which must be one of `choices`."""
        text = self.take(name)
        if text is None:
            return default
        if text.lower() not in choices:
            raise BadRequestError(f"the option {name} is one of {', '.join(choices)}, not {text!r}")
        return text.lower()

    def take_flag(self, name: str, default: bool) -> bool:
        """Return the value of an option that is ``true`` or ``false``."""
        return self.take_choice(name, ("true", "false"), str(default).lower()) == "true"

    def take_count(self, name: str, *aliases: str, least: int = 1) -> int | None:
        """Return the value of an option that is a whole number of at least `least`."""
        text = self.take(name, *aliases)
        if text is None:
            return None
        if not text.strip().isdecimal() or int(text) < least:
            raise BadRequestError(f"the option {name} is a number from {least} on, not {text!r}")
        return int(text)

    def take_bytes(self, name: str, *aliases: str) -> int | None:
        """Return the value of an option in bytes; its text may be ``64m`` or ``1GiB``."""
        text = self.take(name, *aliases)
        if text is None:
            return None
        number = text.strip().rstrip("bBiIkKmMgG")
        unit = _BYTE_UNITS.get(text.strip()[len(number) :].lower())
        if not number.strip().isdecimal() or unit is None or int(number) < 1:
            raise BadRequestError(f"the option {name} is a size such as 64m, not {text!r}")
        return int(number) * unit

    def take_seconds(self, name: str) -> float | None:
        """Return the value of a time option, such as ``30s`` or ``15m``, in seconds."""
        text = self.take(name)
        if text is None:
            return None
        number = text.strip().rstrip("msinhdMSINHD")
        unit = _SECOND_UNITS.get(text.strip()[len(number) :].lower())
        if not number.strip().isdecimal() or unit is None or int(number) < 1:
            raise BadRequestError(f"the option {name} is a time such as 30s or 15m, not {text!r}")
        return int(number) * unit

    def take_names(self, name: str, *aliases: str) -> list[str] | None:
        """Return the names in an option's value, where commas separate them."""
        text = self.take(name, *aliases)
        if text is None:
            return None
        names = [one.strip() for one in text.split(",") if one.strip()]
        if not names:
            raise BadRequestError(f"the option {name} names nothing")
        return names

    def take_one(self, names: Iterable[str]) -> str | None:
        """Return the name in `names` whose option is given; None if none of them is given.

        Unlike `take`, this method does not mark the option as known.

        Raises:
            BadRequestError: two of the options are given.
        """
        given = [name for name in names if name.lower() in self._given]
        if len(given) > 1:
            raise BadRequestError(f"give either the option {given[0]} or {given[1]}, not both")
        return given[0] if given else None

    def refuse_others(self) -> None:
        """Refuse options that no `take` method has marked as known.

        Raises:
            BadRequestError: there is an unknown option.
        """
        known = {name.lower(): name for name in self._known}
        for name in sorted(self._given.keys() - known.keys() - {*SPARKS_OWN}):
            near = get_close_matches(name, known, 1)
            hint = f"; do you mean {known[near[0]]}?" if near else ""
            raise BadRequestError(f"there is no option {name}{hint}")
