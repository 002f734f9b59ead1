"""Logs: named, replicated sequences of records, made of ledgers.

A log has partitions. The list of a partition's ledgers is its **head** in the metadata store, which
changes by compare-and-set only (`head/chain` has the steps, `head/head_keeper` takes them).

- A **writer** (`write/writer`) owns a partition. It takes the partition over (`write/takeover`),
  appends to the last ledger, and continues in another one when that is large or dead
  (`write/partition_writer`, `head/roll`). Only one of its tasks changes the head.
- **Publishers** of a transactional log write ledgers of their own (`publish/range_writer`). They
  publish ranges of these (`publish/publisher`), all ranges of a batch in one transaction.
- A **reader** (`read/reader`) goes from range to range (`read/ranges`) and follows the head. It
  never fences. It finds its start (`read/start_position`) by binary search.
- A **cursor** (`consume/cursors`) remembers the progress of consumers (`consume/consumer`,
  `consume/group`), which `consume/commit` moves.
- **Retention** (`tidy/retention`) truncates (`tidy/truncation`). `tidy/deletion` deletes a log, and
  `tidy/sweep` the leftovers of crashed processes. A **compaction** (`compact/compaction`) copies
  many small ledgers into few. All delete only ledgers that no range names (`tidy/unnamed_ledgers`).

Safety rests on fencing and on compare-and-set alone. Locks and owners only avoid useless work.
"""
