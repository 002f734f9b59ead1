"""Logs in the metadata store: definitions, policies, heads, cursors, groups, namespaces."""
