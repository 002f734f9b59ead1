"""One writer of ``bookie torture``, as a process that can be killed and stopped.

It owns a partition and appends numbered records, until something ends it. For each record that is
acknowledged it prints the record's number and its offset. A writer that follows begins with the
first number that was not acknowledged: if its record is in the log, it is not there twice.
"""

from __future__ import annotations

import sys

from bookie.api import connect
from bookie.daemon.loop import run
from bookie.daemon.signals import stop_with_parent
from bookie.errors import BookieError

BATCH_MAX = 40
_ROLL_EVERY = 50
"""Batches of one ledger: so there are many ledgers, also in a short torture."""


def value_of(partition: int, sequence: int) -> bytes:
    """The value of a record; its number follows from it, and its bytes from the number."""
    return f"{partition} {sequence} ".encode() + b"." * (sequence * 7919 % 500)


def sequence_of(partition: int, value: bytes) -> int:
    """The number of a record; -1 if no writer wrote `value`."""
    words = value.split(b" ", 2)
    sequence = int(words[1]) if len(words) == 3 and words[1].isdigit() else -1
    return sequence if value == value_of(partition, sequence) else -1


async def write(metadata: str, log: str, partition: int, first: int) -> None:
    """Append records from number `first` on, for ever."""
    async with (
        connect(metadata) as bk,
        bk.open_log(log, partition=partition, create=False) as writer,
    ):
        batch, sequence = 0, first
        while True:
            batch += 1
            count = 1 + batch * 7 % BATCH_MAX
            numbers = range(sequence, sequence + count)
            positions = await writer.append_many(
                [value_of(partition, number) for number in numbers],
                producer=(f"writer-{partition}", sequence),
                partition=partition,
            )
            lines = [
                f"{number} {at.offset}\n" for number, at in zip(numbers, positions, strict=True)
            ]
            print("".join(lines), end="", flush=True)
            sequence += count
            if batch % _ROLL_EVERY == 0:
                await writer.roll()


def main() -> int:
    """Write as the arguments say: metadata, log, partition, first number."""
    stop_with_parent()
    metadata, log, partition, first = sys.argv[1:]
    try:
        run(write(metadata, log, int(partition), int(first)))
    except BookieError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
