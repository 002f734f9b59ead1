"""Logs: named, replicated sequences of records, made of ledgers.

A log has partitions. The list of a partition's ledgers is its **head** in the metadata store, which
changes by compare-and-set only (`bookie.log.head.chain` has the steps, `head_keeper` takes them).

- A **writer** (`writer`) owns a partition: it takes it over (`takeover`), appends to the last
  ledger, and goes on in another one when that is large or dead. One task of it, the only one that
  changes the head, does this step by step.
- **Publishers** of a transactional log write ledgers of their own (`range_writer`). They publish
  ranges of these (`publisher`), all ranges of a batch in one transaction.
- A **reader** (`reader`) goes from range to range and follows the head. It never fences. It finds
  offsets (`ranges`) and times (`seek`) by halving; `partitions_reader` merges several.
- A **cursor** remembers how far consumers have come (`cursors`, `consumer`, `group`).
- **Retention** (`retention`) truncates (`truncation`). `deletion` deletes a log, and `sweep` what
  crashed processes left behind. A **compaction** (`compaction`) copies many small ledgers into few.
  All delete only ledgers that no range names (`unnamed_ledgers`).

Safety rests on fencing and on compare-and-set alone. Locks and owners only spare useless work.
"""
