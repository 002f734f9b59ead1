"""BookKeeper's managers, written once on the metadata store.

Cluster identity, cookies, ledger ids, ledger metadata, and who is alive. No key of the store is
built anywhere else (`keys`).
"""
