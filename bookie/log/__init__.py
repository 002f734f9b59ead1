"""Logs: named, replicated sequences of records that are stored in ledgers.

A log has partitions. Each partition has a **head** in the metadata store: the list of its ledgers.
The head changes by compare-and-set only. `head/chain` defines the changes, and `head/head_keeper`
writes them.

- A **writer** (`write/writer`) owns a partition. It takes the partition over (`write/takeover`),
  appends to the last ledger, and continues in another one when that is large or dead
  (`write/partition_writer`, `head/roll`). Of the writer's tasks, only one changes the head.
- **Publishers** of a transactional log write ledgers of their own (`publish/range_writer`). They
  publish ranges of these (`publish/publisher`), all ranges of a batch in one transaction.
- A **reader** (`read/reader`) reads range after range (`read/ranges`) and follows the head. A
  reader never fences. Binary search finds its start (`read/start_position`).
- A **cursor** (`consume/cursors`) remembers the progress of consumers (`consume/consumer`,
  `consume/group`). `consume/commit` moves the cursor.
- **Retention** (`tidy/retention`) truncates (`tidy/truncation`). `tidy/deletion` deletes a log, and
  `tidy/sweep` the leftovers of crashed processes. A **compaction** (`compact/compaction`) copies
  many small ledgers into few. All three delete only ledgers that no range names
  (`tidy/unnamed_ledgers`).

The safety of a log depends only on fencing and compare-and-set. Locks and owners only avoid useless
work.
"""
