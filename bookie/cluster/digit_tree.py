"""Stores records with numbers as keys, in directories that are small enough to be listed.

A number is padded to a fixed count of digits, and its digits are split into groups. Each group of
digits is one segment of the key, and so one level of the tree. Names in the last level have a
prefix. With groups of 2, 4 and 4 digits and the prefix ``L``, number 1 has the key
``00/0000/L0001``. All names of a level are equally long, so the order of the keys is the order of
the numbers.

Source: BookKeeper's hierarchical ledger managers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from bookie.errors import BadRequestError, FormatError
from bookie.metadata.model import Record
from bookie.metadata.store import MetadataStore
from bookie.telemetry import event_log

STRAYS_TOLD_MAX = 100

_log = event_log(__name__)


@dataclass(frozen=True, slots=True)
class DigitTree:
    """Converts numbers to keys below `root`, and back."""

    root: str
    groups: tuple[int, ...]
    prefix: str = ""
    """Prefix of the names in the last level."""
    maximum: int = 2**63 - 1
    skips_strays: bool = False
    """True if listings skip and log *strays*: keys that are not the key of a number. False if a
    stray makes listings fail."""
    _told: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    """The strays that were logged, at most `STRAYS_TOLD_MAX`."""

    def key(self, number: int) -> str:
        """Return the key of `number`.

        Raises:
            BadRequestError: the number is out of range.
        """
        # A float would pass the comparison, and every later listing would fail at the float's key.
        if not isinstance(number, int) or not 0 <= number <= self.maximum:
            raise BadRequestError(f"{number!r} is not a ledger id")
        return "/".join((self.root, *self._names(number)))

    def _names(self, number: int) -> list[str]:
        digits = f"{number:0{sum(self.groups)}}"
        names = []
        for size in self.groups:
            names.append(digits[:size])
            digits = digits[size:]
        names[-1] = self.prefix + names[-1]
        return names

    def number_of(self, key: str) -> int:
        """Return the number that `key` belongs to.

        Raises:
            FormatError: `key` is not the key of a number.
        """
        names = key.removeprefix(self.root + "/").split("/")
        digits = "".join(names[:-1]) + names[-1].removeprefix(self.prefix)
        is_number = digits.isascii() and digits.isdigit() and len(digits) == sum(self.groups)
        number = int(digits) if is_number else -1
        if not 0 <= number <= self.maximum or self.key(number) != key:
            raise FormatError(f"the metadata key {key} is not where a number of {self.root} lies")
        return number

    def owns(self, name: str) -> bool:
        """True if a child of the root with this `name` belongs to this tree."""
        size = self.groups[0]
        if len(self.groups) == 1:
            name = name.removeprefix(self.prefix) if name.startswith(self.prefix) else ""
        return len(name) == size and name.isascii() and name.isdigit()

    async def scan(
        self, store: MetadataStore, names: list[str] | None = None, *, after: int = -1
    ) -> AsyncIterator[tuple[int, Record]]:
        """Yield the numbers above `after` with their records, ascending.

        Every record that exists during the whole scan is yielded. If several trees share the root,
        `names` lists the children of the root that belong to this tree. If `names` is None, all
        children belong to this tree.

        Raises:
            MetadataUnavailableError: the scan could not be completed.
            FormatError: the tree contains a stray, and `skips_strays` is False.
        """
        async for directory, first in self._directories(store, names, after):
            async for record in store.scan_children(directory, after=first):
                if not self._is_stray(record.key):
                    after = self._next(record.key, after)
                    yield after, record

    async def scan_numbers(
        self, store: MetadataStore, names: list[str] | None = None, *, after: int = -1
    ) -> AsyncIterator[int]:
        """Yield the numbers above `after`, ascending; list only names of keys, read no records.

        A number without a record is also yielded if there are keys below its key.
        """
        async for directory, first in self._directories(store, names, after):
            for name in await store.get_children(directory):
                key = f"{directory}/{name}"
                if name > first and not self._is_stray(key):
                    after = self._next(key, after)
                    yield after

    def _is_stray(self, key: str) -> bool:
        """True if `key` is a stray and listings skip strays; log the stray."""
        if not self.skips_strays:
            return False
        try:
            self.number_of(key)
        except FormatError as error:
            self._tell(key, error)
            return True
        return False

    def _tell(self, key: str, error: FormatError) -> None:
        if key not in self._told and len(self._told) < STRAYS_TOLD_MAX:
            self._told.add(key)
            _log.warning("stray_metadata_key", key=key, reason=str(error))

    def _next(self, key: str, after: int) -> int:
        number = self.number_of(key)
        if number <= after:
            raise FormatError(f"the metadata store listed {key} out of order")
        return number

    async def _directories(
        self, store: MetadataStore, names: list[str] | None, after: int
    ) -> AsyncIterator[tuple[str, str]]:
        """Yield the directories that may hold numbers above `after`.

        Each directory is yielded with a name: in this directory, only names after that name belong
        to numbers above `after`.
        """
        start = self._names(after) if after >= 0 else [""] * len(self.groups)
        # The last item of the stack is handled next. `is_start` is True if the directory lies on
        # the path to the key of `after`.
        stack = [(self.root, 0, True)]
        while stack:
            directory, level, is_start = stack.pop()
            first = start[level] if is_start else ""
            if level == len(self.groups) - 1:
                yield directory, first
                continue
            if names is None or level:
                found = await store.get_children(directory)
            else:
                found = names
            found = [name for name in found if self._is_directory(directory, name, level)]
            stack += [
                (f"{directory}/{name}", level + 1, is_start and name == first)
                for name in reversed(found)
                if name >= first
            ]

    def _is_directory(self, directory: str, name: str, level: int) -> bool:
        """True if `name` can be a directory of this tree; False if it is a stray.

        Raises:
            FormatError: the name is a stray, and `skips_strays` is False.
        """
        if len(name) == self.groups[level] and name.isascii() and name.isdigit():
            return True
        key = f"{directory}/{name}"
        error = FormatError(f"the metadata key {key} is not where a number of {self.root} lies")
        if not self.skips_strays:
            raise error
        self._tell(key, error)
        return False
