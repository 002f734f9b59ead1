"""The service that finds ledgers without all copies, and restores the copies."""
