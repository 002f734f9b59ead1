"""The metadata of logs: definitions, policies, heads, cursors, groups, namespaces."""
