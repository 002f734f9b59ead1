"""The journal: every entry is durable here first."""
