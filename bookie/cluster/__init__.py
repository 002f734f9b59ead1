"""Managers of a cluster's records in the metadata store, for every kind of metadata store.

The managers keep cluster identity, cookies, ledger ids, ledger metadata, and registered bookies.
The module `keys` defines the keys of all these records.
"""
