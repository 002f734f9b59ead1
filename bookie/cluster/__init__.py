"""Managers of BookKeeper's cluster data, written once for all metadata stores.

The managers keep cluster identity, cookies, ledger ids, ledger metadata, and registered bookies.
Only `keys` defines the keys of these records in the store.
"""
