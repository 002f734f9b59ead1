"""Managers that read and change a cluster's records in any kind of metadata store.

The managers keep the cluster's identity, its settings, and the cookies, registrations and grants.
The module `keys` defines the keys of all records of a cluster, including the records of ledgers and
logs.
"""
