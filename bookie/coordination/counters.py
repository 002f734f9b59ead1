"""Unique numbers from a counter: no two processes get the same number.

The counter is one record, which contains the next free number as decimal text. A process reserves a
block of numbers by compare-and-set, so no number is given out twice. Some numbers are never given
out: if the store does not answer a reservation, or if a process ends before it has used its block.

Source: BookKeeper's ledger ids and Pulsar's counters. The sequence numbers that a store appends to
record names are not used here: they may overflow, start again, or be shared with other records.
"""

from __future__ import annotations

import asyncio

from bookie.coordination.participant import Participant
from bookie.env.checked import checked
from bookie.errors import BadRequestError, BadVersionError, FormatError, MetadataUnavailableError
from bookie.metadata.model import NOT_EXISTS, check_key

ATTEMPTS_MAX = 30
"""The most attempts at one reservation: each fails if another process writes the counter first."""


class Counter:
    """The counter at the key `path`; its first number is 0.

    Args:
        participant: the participant whose store has the counter.
        path: the key of the counter.
        block: how many numbers `next` reserves in one write. If the process ends, the numbers that
            it has not used are lost.
    """

    @checked
    def __init__(self, participant: Participant, path: str, *, block: int = 1) -> None:
        self._participant = participant
        self._path = check_key(path)
        self._block = block
        self._left = range(0)
        self._serial = asyncio.Lock()

    async def next(self) -> int:
        """Return a number that no other call in any process gets; raises like `reserve`."""
        async with self._serial:
            if not self._left:
                self._left = await self.reserve(self._block)
            number, self._left = self._left[0], self._left[1:]
            return number

    @checked
    async def reserve(self, count: int) -> range:
        """Reserve and return `count` consecutive numbers, greater than all numbers reserved before.

        Raises:
            BadRequestError: `count` is less than 1.
            MetadataUnavailableError: the store did not answer, or other processes changed the
                counter first in all `ATTEMPTS_MAX` attempts. Numbers may have been skipped.
            FormatError: the record is not a counter; the record does not change.
        """
        if count < 1:
            raise BadRequestError(f"{count} numbers cannot be reserved; the least is 1")
        store = self._participant.store
        for attempt in range(ATTEMPTS_MAX):
            record = await store.get(self._path)
            first = 0 if record is None else _parse(self._path, record.value)
            version = NOT_EXISTS if record is None else record.version
            try:
                await store.put(self._path, b"%d" % (first + count), version=version)
            except BadVersionError:
                if attempt:
                    await self._participant.pause(0)
                continue
            return range(first, first + count)
        raise MetadataUnavailableError(
            f"the counter {self._path} could not be advanced: others were faster {ATTEMPTS_MAX}"
            " times"
        )


def _parse(path: str, value: bytes) -> int:
    if not value.isdigit() or len(value) > 40:
        raise FormatError(f"the record {path} is not a counter: {value[:40]!r}")
    return int(value)
