"""The program of a writer process of ``bookie torture``, which can be killed and paused.

The process owns a partition and appends numbered records until it is killed or fails. For each
acknowledged record, the process prints the record's number and offset. The next writer begins with
the first number that was not acknowledged. If the log already has this record, its producer number
prevents a second copy.
"""

from __future__ import annotations

import sys

from bookie.api import BookKeeper, connect
from bookie.daemon.loop import run
from bookie.daemon.signals import stop_with_parent
from bookie.errors import BookieError

BATCH_MAX = 40
_ROLL_EVERY = 50
"""The number of batches in one ledger, so small that even a short torture creates many ledgers."""


def value_of(partition: int, sequence: int) -> bytes:
    """Return the value of a record, which depends only on its partition and its number."""
    return f"{partition} {sequence} ".encode() + b"." * (sequence * 7919 % 500)


def sequence_of(partition: int, value: bytes) -> int:
    """Return the number of a record from its value; -1 if no writer wrote `value`."""
    words = value.split(b" ", 2)
    sequence = int(words[1]) if len(words) == 3 and words[1].isdigit() else -1
    return sequence if value == value_of(partition, sequence) else -1


def connect_privately(metadata: str) -> BookKeeper:
    """Return a client of the torture run's own cluster, which uses no TLS.

    The client ignores the certificates in environment variables, which are often for another
    cluster.
    """
    return connect(metadata, ca_file="", certificate_file="", key_file="", token_file="")


async def write(metadata: str, log: str, partition: int, first: int) -> None:
    """Append records from the number `first` on, until the process ends."""
    async with (
        connect_privately(metadata) as bk,
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
    """Run the writer.

    The process's arguments are metadata URI, log, partition, first number, and the process id of
    the parent.
    """
    metadata, log, partition, first, parent = sys.argv[1:]
    stop_with_parent(int(parent))
    try:
        run(write(metadata, log, int(partition), int(first)))
    except BookieError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
