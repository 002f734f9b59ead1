"""BookKeeper's managers, written once on the metadata store.

Cluster identity, cookies, ledger ids, ledger metadata, and registered bookies. Only `keys` says
where they lie in the store.
"""
