"""Exactly once: what records come to and the position in the log are one transaction of SQLite.

Sales are summed up by product. The offset of the next sale is stored with the sums, so that both
are committed or neither is. A restart goes on behind the last commit: no sale is counted twice.

With `make run` in another terminal::

    export BOOKIE_METADATA=local://$PWD/data/metadata
    .venv/bin/python examples/exactly_once_sqlite.py --crash-after 2 sums.db tea=3 tea=4 cake=5
    .venv/bin/python examples/exactly_once_sqlite.py sums.db        # tea 7, cake 5
"""

import argparse
import os
import sqlite3

import bookie.sync
from bookie.sync import SyncBookKeeper

LOG = "sales"
SCHEMA = """
CREATE TABLE IF NOT EXISTS sums (product TEXT PRIMARY KEY, total INT);
CREATE TABLE IF NOT EXISTS positions (log TEXT PRIMARY KEY, next_offset INT);
"""


def sell(bk: SyncBookKeeper, sales: list[str]) -> None:
    """Append sales to the log."""
    with bk.open_log(LOG) as log:
        log.append_many([sale.encode() for sale in sales])


def sum_up(bk: SyncBookKeeper, database: sqlite3.Connection, crash_after: int | None) -> None:
    """Count what is behind the stored position. With many records, take batches."""
    query = "SELECT next_offset FROM positions WHERE log = ?"
    (start,) = database.execute(query, (LOG,)).fetchone() or (0,)
    print(f"from offset {start}", flush=True)
    for counted, record in enumerate(bk.read_log(LOG, start=start)):
        product, _, amount = record.value.decode().partition("=")
        with database:
            database.execute(
                "INSERT INTO sums VALUES (?, ?) ON CONFLICT DO UPDATE SET total = total + ?",
                (product, int(amount), int(amount)),
            )
            if counted == crash_after:
                os._exit(1)
            database.execute("REPLACE INTO positions VALUES (?, ?)", (LOG, record.offset + 1))


def main() -> None:
    """Sell, sum up, and print the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("sales", nargs="*", help="such as tea=3")
    parser.add_argument("--crash-after", type=int, help="die in the transaction after so many")
    options = parser.parse_args()
    database = sqlite3.connect(options.database)
    database.executescript(SCHEMA)
    with bookie.sync.connect(os.environ["BOOKIE_METADATA"]) as bk:
        sell(bk, options.sales)
        sum_up(bk, database, options.crash_after)
    for product, total in database.execute("SELECT * FROM sums ORDER BY product"):
        print(product, total)
    database.close()


if __name__ == "__main__":
    main()
