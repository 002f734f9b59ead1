"""Cursors, consumers and groups: how far who has come."""
