"""The metadata store in etcd; its URI is ``etcd://HOST:2379,HOST:2379/scope``.

etcd itself fulfils most of the store's contract. The etcd revision is the version of a record, an
etcd Txn is a transaction, and a lease is a session. An etcd watch delivers the changes of one range
of keys. This package adds two things: known outcomes after lost replies, and watches that deliver
every commit.

| module | what it holds |
|---|---|
| `backend` | `EtcdStore`: reads, retries of writes, watches; differences from memory |
| `client` | calls and streams on one endpoint at a time; TLS, the user's token, our errors |
| `key_layout` | keys of records: from ``/scope/`` to ``/scope0``, the store's own keys first |
| `transactions` | operations as one Txn, and its response as results or as an error |
| `messages` | compares, writes and reads; a large transaction as a Txn of Txns |
| `session` | the session, which begins with the first write: a store that only reads has none |
| `lease` | the lease of a session, and receipts: the outcome of a write whose reply was lost |
| `watch` | a watch on one range: commits whole and in order, resumed without a gap |
| `listing` | children in pages that skip subtrees |

**A write** is one Txn (`transactions`). The Txn compares the conditions of all operations, and
writes if all conditions hold. If a condition fails, the Txn reads, in the same instant, the records
that `evaluate` needs to name the error. The Txn also compares and replaces a *receipt*, a key that
belongs to the session's lease. If a reply is lost, the store tries to replace the receipt itself,
and so to prevent the write. If the write came first, the receipt shows its outcome (`lease`).

**Watches** resume after the last delivered commit. If etcd has already compacted away the next
revision, or the cluster was restored to an older revision, the watch delivers `Resync`.

**Foreign keys** are keys that another program wrote into the scope, and that are not valid as keys
of records. The store skips foreign keys and logs one warning. Only `delete_foreign` deletes foreign
keys.
"""
