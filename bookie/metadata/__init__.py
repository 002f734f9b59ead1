"""The metadata store: small records with compare-and-set, leases, and ordered change events.

`store` is the contract that each backend fulfils, `evaluate` contains the rules of a transaction,
and `connect` opens the store that a URI names. `memory`, `local`, `etcd` and `zookeeper` are the
backends, one folder each; the docstring of each folder explains the backend. A backend imports the
contract and never another backend.
"""
