"""Records under numbers, in directories that stay small enough to be listed.

A number is written with a fixed count of digits, which are cut into groups: one level for each,
the last one with a prefix. 2-4-4 and ``L`` put number 1 at ``00/0000/L0001``. As all names of a
level are equally long, keys in order are numbers in order.

Source: BookKeeper's hierarchical ledger managers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from bookie.errors import BadRequestError, FormatError
from bookie.metadata.store import MetadataStore, Record


@dataclass(frozen=True, slots=True)
class DigitTree:
    """Where numbers lie below `root`."""

    root: str
    groups: tuple[int, ...]
    """How many digits each level has."""
    prefix: str = ""
    """What the names of the last level begin with."""
    maximum: int = 2**63 - 1

    def key(self, number: int) -> str:
        """The key of `number`.

        Raises:
            BadRequestError: it is no number that has one.
        """
        # A float would pass, and leave a key behind that no listing gets over.
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
        """The number whose key is `key`.

        Raises:
            FormatError: it is none's. A listing that skipped it would not be complete.
        """
        names = key.removeprefix(self.root + "/").split("/")
        digits = "".join(names[:-1]) + names[-1].removeprefix(self.prefix)
        number = int(digits) if digits.isascii() and digits.isdigit() else -1
        if not 0 <= number <= self.maximum or self.key(number) != key:
            raise FormatError(f"the metadata key {key} is not where a number of {self.root} lies")
        return number

    def owns(self, name: str) -> bool:
        """Whether `name`, right below the root, is a directory (or the record) of this tree."""
        size = self.groups[0]
        if len(self.groups) == 1:
            name = name.removeprefix(self.prefix) if name.startswith(self.prefix) else ""
        return len(name) == size and name.isascii() and name.isdigit()

    async def scan(
        self, store: MetadataStore, names: list[str] | None = None, *, after: int = -1
    ) -> AsyncIterator[tuple[int, Record]]:
        """The numbers above `after` and their records, ascending.

        Every record that exists during the whole scan is among them. `names` are the tree's own
        right below the root, where it shares that with others; all that is there, when None.

        Raises:
            MetadataUnavailableError: the scan could not be completed.
            FormatError: something else lies in the tree.
        """
        start = self._names(after) if after >= 0 else []
        async for record in self._walk(store, self.root, 0, start, names):
            number = self.number_of(record.key)
            if number <= after:
                raise FormatError(f"the metadata store listed {record.key} out of order")
            after = number
            yield number, record

    async def _walk(
        self,
        store: MetadataStore,
        directory: str,
        level: int,
        start: list[str],
        names: list[str] | None,
    ) -> AsyncIterator[Record]:
        """The records below `directory`, after the one at `start` if that lies here."""
        first = start[level] if start else ""
        if level == len(self.groups) - 1:
            async for record in store.scan_children(directory, after=first):
                yield record
            return
        found = await store.get_children(directory) if names is None else names
        for name in found:
            if not (len(name) == self.groups[level] and name.isascii() and name.isdigit()):
                raise FormatError(
                    f"the metadata key {directory}/{name} is not where a number of {self.root} lies"
                )
            if name < first:
                continue
            inner = start if name == first else []
            async for record in self._walk(store, f"{directory}/{name}", level + 1, inner, None):
                yield record
