"""Logs: named, replicated sequences of records that are stored in ledgers.

A log has partitions. Each partition has a **head**, a record in the metadata store that lists the
ledgers of the partition. The head changes by compare-and-set only. `head/chain` defines the
changes, and `head/head_keeper` writes them.

- A **writer** (`write/writer`) owns a partition. The writer takes the partition over
  (`write/takeover`) and appends to the partition's newest ledger. When this ledger is large or has
  failed, the writer continues in a new ledger (`write/partition_writer`, `head/roll`). Only one
  task of the writer changes the head.
- **Publishers** of a transactional log write ranges of entries to their own ledgers
  (`publish/range_writer`). One transaction publishes all ranges of a batch (`publish/publisher`).
- A **reader** (`read/reader`) reads the ranges of a partition in order (`read/ranges`), and can
  wait for new ranges in the head. A reader never fences. A binary search finds the first entry to
  read (`read/start_position`).
- A **cursor** (`consume/cursors`) remembers the progress of consumers (`consume/consumer`,
  `consume/group`). `consume/commit` moves the cursor.
- **Retention** (`tidy/retention`) decides how much of a log `tidy/truncation` deletes.
  `tidy/deletion` deletes a whole log. `tidy/sweep` deletes the leftovers of crashed processes.
- A **compaction** (`compact/compaction`) copies many small ledgers into a few large ledgers.
- Truncations, sweeps and compactions delete only ledgers that no range names
  (`tidy/unnamed_ledgers`).

The safety of a log depends only on fencing and compare-and-set. Locks and the owner's name in each
head are not needed for safety: they only avoid useless work.
"""
