"""A process that commits to an index until a commit fails, and goes on trying.

It prints one line a commit: its number, and "ok" or the name of the error. A last line says in the
same words how a read went. If the index cannot be opened, there is one line about that.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bookie.env import open_lmdb
from bookie.errors import BookieError

TABLES = ("pages", "rows")
MAP_BYTES = 2**26
COMMITS = 6


def main(directory: str, trigger: str) -> None:
    """Commit; the second half of the commits runs with the trigger in place."""
    try:
        store = open_lmdb(directory, MAP_BYTES, TABLES)
    except (BookieError, OSError) as error:
        print("open", type(error).__name__, flush=True)
        return
    for number in range(COMMITS):
        if number == COMMITS // 2:
            Path(trigger).touch()
        try:
            with store.write() as txn:
                pairs = [(b"%02d/%04d" % (number, i), bytes([number]) * 700) for i in range(60)]
                txn.put_many("pages", pairs)
                txn.put("rows", b"number", b"%d" % number)
        except (BookieError, OSError) as error:
            print(number, type(error).__name__, flush=True)
        else:
            print(number, "ok", flush=True)
    try:
        with store.read() as txn:
            txn.range("pages", b"", b"\xff", 2**31)
    except (BookieError, OSError) as error:
        print("read", type(error).__name__, flush=True)
    else:
        print("read", "ok", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
