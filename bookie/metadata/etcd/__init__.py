"""The store in etcd: ``etcd://HOST:2379,HOST:2379/scope``.

etcd is close to the contract. Its revision is the version of a record, a Txn is a transaction, and
a lease is a session. Each range that is followed has a watch, which delivers its changes. Two
things need work: lost replies, and watches that must deliver every commit.

| module | what it holds |
|---|---|
| `backend` | `EtcdStore`: session, reads, retries of writes, watches; differences from memory |
| `client` | calls and streams on one endpoint at a time; TLS, the user's token, errors as ours |
| `key_layout` | keys of records: from ``/scope/`` to ``/scope0``, the store's own keys first |
| `transactions` | operations as one Txn, and its response as results or as the error that is due |
| `messages` | compares, writes and reads; a large transaction as a Txn of Txns |
| `lease` | the lease of a session, and receipts: the outcome of a write whose reply was lost |
| `watch` | a watch on one range: commits whole and in order, resumed without a gap |
| `listing` | children in pages that skip subtrees |

**A write** is one Txn (`transactions`). It compares the conditions of all operations and writes if
all hold. Otherwise it reads, in the same instant, what `evaluate` needs to name the error. The Txn
also compares and replaces a *receipt*, a key of the session's lease. After a lost reply the receipt
shows the outcome, or its replacement prevents the write (`lease`).

**Watches** resume behind the last delivered commit. If etcd has forgotten it (compaction), or the
cluster was restored to an older revision, the watch delivers `Resync`.

**Foreign keys**, which another program wrote and which can name no record, are skipped with one
warning. Only `delete_foreign` deletes them.
"""
