"""BookKeeper's managers of cluster data, written once for all metadata stores.

The managers keep cluster identity, cookies, ledger ids, ledger metadata, and registered bookies.
Only `keys` says where these records lie in the store.
"""
