"""The metadata store: small records under compare-and-set, leases, and ordered change events.

`store` is the interface and its values, `connect` opens a store by URI. Everything else is a
backend.
"""
