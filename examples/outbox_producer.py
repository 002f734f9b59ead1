"""An outbox: orders are stored with SQLite, then appended to a log, each exactly once.

An order and its row in the outbox are one transaction. The sender appends a row, then marks it. A
crash in between makes it append the row again. The row's number tells the log that it is the same
record: the answer is the position of the first append, and nothing is written.

With `make run` in another terminal::

    export BOOKIE_METADATA=local://$PWD/data/metadata
    .venv/bin/python examples/outbox_producer.py --crash orders.db tea    # sent, not marked
    .venv/bin/python examples/outbox_producer.py orders.db coffee         # tea is in the log once
"""

import argparse
import os
import sqlite3

import bookie.sync
from bookie.sync import SyncBookKeeper

LOG = "orders"


def order(database: sqlite3.Connection, items: list[str]) -> None:
    """Store orders; a service would change its other tables in the same transaction."""
    with database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS outbox "
            "(number INTEGER PRIMARY KEY AUTOINCREMENT, item TEXT, is_sent INT DEFAULT 0)"
        )
        database.executemany("INSERT INTO outbox (item) VALUES (?)", [(item,) for item in items])


def send(bk: SyncBookKeeper, database: sqlite3.Connection, *, crash: bool) -> None:
    """Append what is not marked as sent."""
    rows = database.execute("SELECT number, item FROM outbox WHERE NOT is_sent ORDER BY number")
    with bk.open_log(LOG) as log:
        for number, item in rows.fetchall():
            position = log.append(item.encode(), producer=("outbox", number))
            print(f"{item} is at offset {position.offset}", flush=True)
            if crash:
                os._exit(1)
            with database:
                database.execute("UPDATE outbox SET is_sent = 1 WHERE number = ?", (number,))


def main() -> None:
    """Order, send, and print the log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("items", nargs="*")
    parser.add_argument("--crash", action="store_true", help="die before the first row is marked")
    options = parser.parse_args()
    database = sqlite3.connect(options.database)
    order(database, options.items)
    with bookie.sync.connect(os.environ["BOOKIE_METADATA"]) as bk:
        send(bk, database, crash=options.crash)
        print("log:", *(record.value.decode() for record in bk.read_log(LOG)))
    database.close()


if __name__ == "__main__":
    main()
