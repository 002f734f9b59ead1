"""Managers of a cluster's records in the metadata store, for every kind of metadata store.

The managers keep the cluster's identity, its settings, and the cookies, registrations and grants.
The module `keys` defines the keys of all records of a cluster, also of ledgers and logs.
"""
