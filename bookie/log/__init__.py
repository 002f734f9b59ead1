"""Logs: named, replicated sequences of records that are stored in ledgers.

A log has partitions. Each partition has a **head** in the metadata store: the list of its ledgers.
The head changes by compare-and-set only. `head/chain` defines the changes, and `head/head_keeper`
writes them.

- A **writer** (`write/writer`) owns a partition. It takes the partition over (`write/takeover`),
  appends to the last ledger, and continues in a new ledger when the last one is large or has failed
  (`write/partition_writer`, `head/roll`). Only one task of the writer changes the head.
- **Publishers** of a transactional log write ledgers of their own (`publish/range_writer`). One
  transaction publishes all ranges of a batch (`publish/publisher`).
- A **reader** (`read/reader`) reads range after range (`read/ranges`) and follows the head. A
  reader never fences. Binary search finds its start (`read/start_position`).
- A **cursor** (`consume/cursors`) remembers the progress of consumers (`consume/consumer`,
  `consume/group`). `consume/commit` moves the cursor.
- **Retention** (`tidy/retention`) decides how much of a log `tidy/truncation` deletes.
  `tidy/deletion` deletes a whole log. `tidy/sweep` deletes the leftovers of crashed processes.
- A **compaction** (`compact/compaction`) copies many small ledgers into few.
- Truncations, sweeps and compactions delete only ledgers that no range names
  (`tidy/unnamed_ledgers`).

The safety of a log depends only on fencing and compare-and-set. Locks, and the owners that heads
name, only avoid useless work.
"""
